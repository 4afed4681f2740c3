"""Paths between memories, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mixmark.harness.contracts.schema import Fact, Failure, Result
from mixmark.harness.contracts.schema.device import LARGEST

NAME = "paths"
"""The name of the experiment."""
MEMORY = r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$"


class DataPath(Fact):
    """A path: what bytes take from one memory to another."""

    ids: ClassVar = ("id", "source", "destination")
    id: str = Field(pattern=MEMORY, max_length=200)
    """The name of the path. It begins with the name of its plugin and a slash, and in a run over several hosts with the
    host before that. `hosts/rack1:rack2` leads from one host to another."""
    source: str = Field(pattern=MEMORY, max_length=100)
    """The memory that is copied from: the id of a device, `host`, or a part of the host's memory: `host/node0`. It
    begins with the name of its host in a run over several hosts: `rack1/host`."""
    destination: str = Field(pattern=MEMORY, max_length=100)
    """The memory that is copied to."""
    route: Literal["direct", "staged"] = "direct"
    """`staged`: the bytes are first copied to host memory between the two, so each is copied twice."""
    host_pages: Literal["pageable", "pinned"] | None = None
    """How the host memory at one end is allocated. None if no end is host memory that a device copies from or to."""
    converts: Literal["number format", "layout"] | None = None
    """What a copy changes on its way. None if the destination has the source's bytes."""
    through_caches: bool
    """Whether the host's processor copies or one end is host memory, so that copies of little stay in its caches."""


class CopySample(Fact):
    """Copies one after the other, between two timestamps of the parent."""

    size_bytes: int = Field(ge=1, le=LARGEST)
    """The bytes of one copy."""
    copies: int = Field(ge=0, le=LARGEST)
    """0: the call alone, which is subtracted from the others."""
    ns: int = Field(ge=0, le=LARGEST)
    """From the call to the reply, which carries a word of the destination. The copies are of different bytes, from and
    to different places, if nothing else ran."""


class CopyFault(Fact):
    """The first copy that did not leave the source's bytes in the destination."""

    kind: Literal["corrupted", "short", "repeated", "late"]
    """`short`: the end of the destination was not written. `repeated`: the bytes of the copy before arrived again.
    `late`: the bytes arrived, but only after the copy was acknowledged. `corrupted`: anything else."""
    size_bytes: int = Field(ge=1, le=LARGEST)
    """The bytes of the copy."""
    first_byte: int = Field(ge=0, le=LARGEST)
    """The offset of the first wrong byte."""


class DutyWindow(Fact):
    """Copies that took a part of a window, while the meters were read."""

    begin_ns: int
    end_ns: int
    copied_bytes: int = Field(ge=0, le=LARGEST)
    """The bytes of all copies. 0: nothing was copied."""


class PathRecord(Fact):
    """What was measured of a path. Each copy was of random bytes, 8 bits of entropy a byte."""

    ids: ClassVar = ("opposing",)
    path: DataPath
    opposing: str | None = None
    """The path on which another process copied the other way all the time. None if nothing did."""
    own_code: bool = False
    """Whether a plugin of another package copied and returned the bytes that were compared. False: Mixmark did."""
    beside: str | None = None
    """The phase of the mix during which the copies were made, without a pause. None if the mix did not run."""
    samples: tuple[CopySample, ...] = ()
    """The samples of each size, in the order of the measurement."""
    duty: tuple[DutyWindow, ...] = ()
    """The windows in which the meters were read, each with another part of its time for copies. Empty without a
    meter."""
    metering: str | None = None
    """The metering of these windows. None if there are none."""
    fault: CopyFault | None = None
    """Why no sample counts. None if every destination was compared whole and was right."""
    failure: Failure | None = None
    """Why no larger size was measured. None if all sizes were."""

    @property
    def key(self) -> str:
        against = f" against {self.opposing}" if self.opposing else ""
        return f"{self.path.id}{against}" + (f" beside {self.beside}" if self.beside else "")

    @property
    def alone(self) -> bool:
        """Whether nothing else ran meanwhile."""
        return not (self.opposing or self.beside)


class Move(Fact):
    """Something that a suite moves between memories."""

    suite: str
    what: str
    """`weights`, a KV cache, embeddings or a batch of inputs."""
    size_bytes: int = Field(ge=1, le=LARGEST)
    """Its bytes, from the suite's shapes."""
    units: int | None = Field(default=None, ge=1, le=LARGEST)
    """The units of work that need it on the device. None if their number is not fixed."""


class Moves(Fact):
    """What a run keeps of its paths."""

    moves: tuple[Move, ...] = ()
    """What its suites move between memories."""


class CopyWork(Fact):
    """Copies of one size on a path, one after the other."""

    path: str = Field(min_length=1)
    """The id of the path."""
    size_bytes: int = Field(gt=0)
    """The bytes of one copy."""


def measured(result: Result) -> Iterator[PathRecord]:
    """What a run measured of its paths. A path that the machine lacks is among the absences."""
    yield from (PathRecord.model_validate(each.facts) for each in result.found if each.experiment == NAME)


def moved(result: Result) -> tuple[Move, ...]:
    """What the suites of a run move between memories."""
    return Moves.model_validate(result.experiments[NAME]).moves
