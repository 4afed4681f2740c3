"""Paths between memories, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mixmark.harness.contracts.schema import Fact, Failure, Result
from mixmark.harness.contracts.schema.device import LARGEST
from mixmark.harness.plugins.experiments import Facts

NAME = "paths"
"""The name of the experiment."""
MEMORY = r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$"


class DataPath(Fact):
    """A path: what bytes take from one memory to another."""

    ids: ClassVar = ("id", "source", "destination")
    id: str = Field(pattern=MEMORY, max_length=200)
    """The name of the path. It begins with the name of its plugin and a slash, and in a run over several hosts with the
    host before that."""
    source: str = Field(pattern=MEMORY, max_length=100)
    """The memory that is copied from: the id of a device, `host`, or a part of the host's memory: `host/node0`. It
    begins with the name of its host in a run over several hosts: `rack1/host`."""
    destination: str = Field(pattern=MEMORY, max_length=100)
    """The memory that is copied to."""
    host_pages: Literal["pageable", "pinned"] | None = None
    """How the host memory at one end is allocated. None if no end is host memory that a device copies from or to."""
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

    kind: Literal["corrupted", "late"]
    """`late`: the bytes arrived, but only after the copy was acknowledged. `corrupted`: others arrived, or none."""
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

    path: DataPath
    own_code: bool = False
    """Whether a plugin of another package copied and returned the bytes that were compared. False: Mixmark did."""
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


FACTS = Facts(of_found=PathRecord)


def measured(result: Result) -> Iterator[PathRecord]:
    """What a run measured of its paths. A path that the machine lacks is among the absences."""
    yield from (PathRecord.model_validate(each.facts) for each in result.found if each.experiment == NAME)
