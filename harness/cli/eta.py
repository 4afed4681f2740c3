"""How long a run still takes: the pieces of work ahead of it, what each is expected to take, and what is told of that.

A piece is a stretch of time between two events of a run: preparing a route, measuring it, loading the reference of a
suite, comparing the answers of a record, resting. What a piece takes is known from this run where it was done before,
else from past runs on this machine, else it is guessed; guesses and past times are scaled by what this run's pieces of
the same kind took. Pure: the time is an argument, in seconds on any clock that does not run backwards.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mixmark.harness.contracts.schema import Limits, Phase, Record, Result, Share
from mixmark.harness.plan.phases import scales
from mixmark.harness.plan.presets import SECOND

if TYPE_CHECKING:
    from mixmark.harness.measure.benchmark import Procedure

START_S = {"smoke": 3.0, "edge": 12.0, "server": 60.0}  # starting a worker and loading a network: a slow machine's
REFERENCE_S = {"smoke": 3.0, "edge": 10.0, "server": 60.0}  # the same of a reference
COMPARE_S = {"smoke": 0.4, "edge": 4.0, "server": 30.0}  # one feed by the reference
PROBE_START_S, PROBE_COMPARE_S = 6.0, 1.0  # a probe loads no network
LONG_FEED = 1.25  # a window that ends at its longest time ends with a feed that began before
HAND_OVER_S = 10.0  # the workers of a mix hand over their answers and end
OPEN = 4.0  # a mix whose longest time is more than so many times its least one has a length that cannot be guessed
MARGIN = 1.05  # past times are told with so much more: an early end disappoints nobody
BAD_NEWS_S, GOOD_NEWS_S = 10.0, 30.0  # the weight of what was expected against slower and against faster pieces
FREE_S = 60.0  # for so long nothing is promised yet
GROWS = 1.1  # the most by which the time left may grow afterwards
SOON_S = 30  # a shorter time left is told in words
USELESS = {("reference", kind) for kind in ("", "rest", "prepare", "reference")}  # no comparison follows
OVERDUE, OVERDUE_S = 1.25, 10.0  # a piece that takes so much more than expected, and so many seconds more, is late


@dataclass(frozen=True)
class Piece:
    """A stretch of a run between two events."""

    kind: Literal["rest", "prepare", "measure", "mix", "reference", "compare"]
    about: str
    """The key of its share or record, or the name of its suite; `mix` for a window of the mix."""
    row: str
    """What a table of past times calls it: the same work has the same row in all runs."""
    guess_s: float
    like: str = ""
    """What a piece of the same kind must have in common with it to say how well it was guessed: the scenario."""
    phase: str = ""
    """The phase that it is measured in, if any."""
    open: bool = False
    """Whether the guess is worth nothing."""
    step: int = 0
    """The number of the step that it belongs to, from 1."""


@dataclass(frozen=True)
class Told:
    """What is told of the time left."""

    seconds: int
    more: bool = False
    """Whether it will be more, and the promise that was given forbids to tell how much more."""
    whole: bool = True
    """Whether it is the time to the end of the run; else, to the beginning of a mix whose length is not known yet."""

    def __str__(self) -> str:
        soon = self.seconds <= SOON_S
        if not self.whole:
            late = "later than expected, " if self.more else ""
            return f"{late}the mix comes next" if soon else f"{self._amount} to the mix"
        if soon:
            return "finishing later than expected" if self.more else "finishing"
        return f"{self._amount} left" + (", slower than expected" if self.more else "")

    @property
    def _amount(self) -> str:
        return f"{'more than' if self.more else 'about'} {clock(self.seconds)}"


class Promise:
    """After the first minute, what is told never exceeds the least that was told before by more than a tenth."""

    def __init__(self) -> None:
        self._least: int | None = None

    def tell(self, elapsed_s: float, left_s: float, whole: bool) -> Told:
        """What is told of `left_s` after `elapsed_s` of the run."""
        seconds = max(SOON_S, math.ceil(left_s))
        if elapsed_s < FREE_S:
            return Told(seconds, whole=whole)
        least = seconds if self._least is None else self._least
        told = min(seconds, least if least <= SOON_S else math.floor(GROWS * least))
        self._least = min(least, told)
        return Told(told, more=seconds > math.floor(GROWS * told), whole=whole)


class Pace:
    """Follows a run through its pieces. `total` steps are those that come, the mix and all comparisons included."""

    def __init__(
        self,
        header: Result,
        how: Procedure,
        waiting: Collection[str] = (),
        metered: bool = False,
        past: Mapping[str, float] = {},
        now_s: float = 0.0,
    ) -> None:
        """header: of a new run, or of one that goes on. waiting: the keys of its records whose answers are not compared
        yet. metered: whether meters read the machine at rest. past: the rows of past runs, in seconds."""
        self._header, self._how, self._past = header, how, past
        self._idle_s = how.idle_s if metered else 0.0
        self._phases = list(header.phases)
        self._feed_units = {record.route.suite: record.feed_units or 1 for record in header.records}
        self._measured = {record.route.suite for record in header.records if not record.error}
        self._sums: dict[tuple[str, str, bool], tuple[float, float]] = {}
        self.times: dict[str, float] = {}
        """What each row took in this run, the latest time of each."""
        self.begin_s = self.piece_s = now_s
        """When the run and the piece that goes on began."""
        self._bar = 0.0
        self._whole = False
        self._promise = Promise()
        done = {record.phase for record in header.records}
        self.left: list[Piece] = []
        """The pieces that are not over, in order; the first one goes on now."""
        self.total = 0
        self._steps_of: dict[str, int] = {}
        shares = [share for phase in header.phases for share in phase.shares if share.key in waiting]
        self._plan([phase for phase in header.phases if phase.name not in done], shares)

    @property
    def step(self) -> int:
        """The number of the step that goes on."""
        return self.left[0].step if self.left else self.total

    def step_of(self, phase: str) -> int:
        """The number of the step of a phase."""
        return self._steps_of.get(phase, self.step)

    def enter(self, kind: str, about: str, now_s: float) -> None:
        """A piece begins, so what was before it is over. A piece that is not ahead changes nothing."""
        at = next((at for at, each in enumerate(self.left) if (each.kind, each.about) == (kind, about)), 0)
        if at == 1:
            self._time(now_s)
        else:
            del self.left[:at]
        if at:
            self.piece_s = now_s

    def recorded(self, record: Record, pending: bool, now_s: float) -> None:
        """A phase is over, or another record of it is there. pending: whether its answers still wait
        to be compared."""
        if record.feed_units:
            self._feed_units[record.route.suite] = record.feed_units
        if not record.error:
            self._measured.add(record.route.suite)
        mine = sum(piece.phase == record.phase for piece in self.left)
        if mine:
            if mine == 1 and not record.error:
                self._time(now_s)
            self.left = [piece for piece in self.left if piece.phase != record.phase]
            self.piece_s = now_s
        if not pending:
            self._drop(record.key)
        ahead = {piece.phase for piece in self.left}
        if record.error and not self._mixes([phase for phase in self._phases if phase.name in ahead]):
            names = {"", *(phase.name for phase in self._phases)}
            end = min((piece.step for piece in self.left if piece.phase not in names), default=self.total + 1)
            self.left = [piece for piece in self.left if piece.step < end]

    def compared(self, record: Record, now_s: float) -> None:
        """The answers of a record were compared, or cannot be."""
        if self.left and (self.left[0].kind, self.left[0].about) == ("compare", record.key):
            self._time(now_s)
            self.piece_s = now_s
        self._drop(record.key)

    def planned(self, phases: Sequence[Phase], now_s: float) -> None:
        """Phases were planned during the run: they are what comes next."""
        self._phases += phases
        self.piece_s = now_s
        self._plan(phases, ())

    def told(self, now_s: float) -> Told:
        """What is told of the time left."""
        left_s, whole = 0.0, True
        for at, piece in enumerate(self.left):
            if piece.open and piece.row not in self.times and piece.row not in self._past and at:
                whole = False
                break
            left_s += self._left_s(at, now_s)
        if whole and not self._whole:
            self._whole, self._promise = True, Promise()
        return self._promise.tell(now_s - self.begin_s, left_s, whole)

    def share(self, now_s: float) -> float:
        """How much of the run is over, from 0 to 1; it never falls."""
        elapsed_s = now_s - self.begin_s
        left_s = sum(self._left_s(at, now_s) for at in range(len(self.left)))
        share = min(0.99, elapsed_s / (elapsed_s + left_s)) if elapsed_s and left_s else 0.0
        self._bar = max(self._bar, share) if self.left else 1.0
        return self._bar

    def late(self, now_s: float) -> bool:
        """Whether the piece that goes on takes far longer than expected."""
        if not self.left:
            return False
        expected_s = self._expected_s(self.left[0], now_s)
        return now_s - self.piece_s > max(OVERDUE * expected_s, expected_s + OVERDUE_S)

    def _left_s(self, at: int, now_s: float) -> float:
        expected_s = self._expected_s(self.left[at], now_s)
        return expected_s if at else max(0.0, expected_s - (now_s - self.piece_s))

    def _expected_s(self, piece: Piece, now_s: float) -> float:
        if piece.row in self.times:
            return self.times[piece.row]
        key = self._alike(piece)
        base_s = self._base_s(piece)
        if piece.kind == "rest":
            return base_s
        took_s, expected_s = self._sums.get(key, (0.0, 0.0))
        current = self.left[0]
        if piece is not current and self._alike(current) == key:
            spent_s = now_s - self.piece_s
            if spent_s > (current_s := self._base_s(current)):  # it is not over, and slower already
                took_s, expected_s = took_s + spent_s, expected_s + current_s
        weight_s = BAD_NEWS_S if took_s > expected_s else GOOD_NEWS_S
        return base_s * (took_s + weight_s) / (expected_s + weight_s)

    def _alike(self, piece: Piece) -> tuple[str, str, bool]:
        """Pieces that have this in common are as much slower or faster than expected. A reference is loaded too."""
        return "prepare" if piece.kind == "reference" else piece.kind, piece.like, piece.row in self._past

    def _base_s(self, piece: Piece) -> float:
        return MARGIN * self._past[piece.row] if piece.row in self._past else piece.guess_s

    def _time(self, now_s: float) -> None:
        """The first piece is over, and its begin and its end were seen."""
        piece = self.left.pop(0)
        if piece.kind == "rest":
            return
        key, took_s = self._alike(piece), now_s - self.piece_s
        before_s, expected_s = self._sums.get(key, (0.0, 0.0))
        self._sums[key] = before_s + took_s, expected_s + self._base_s(piece)
        self.times[piece.row] = took_s

    def _drop(self, key: str) -> None:
        """No comparison of this record is ahead, and no reference is loaded for none."""
        left = [piece for piece in self.left if (piece.kind, piece.about) != ("compare", key)]
        behind = [*(piece.kind for piece in left[1:]), ""]
        self.left = [piece for piece, kind in zip(left, behind, strict=False) if (piece.kind, kind) not in USELESS]

    def _mixes(self, ahead: Sequence[Phase]) -> bool:
        """Whether there is a mix, and each suite of it was measured or will be in one of these phases, or in one that
        the screening runs choose."""
        coming = {share.route.suite for phase in (*ahead, *self._header.candidates) for share in phase.shares}
        return self._header.mix is not None and self._header.mix.units.keys() <= self._measured | coming

    def _plan(self, phases: Sequence[Phase], waiting: Sequence[Share]) -> None:
        steps = list(self._steps(phases, waiting))
        over = self.step - 1 if self.left else self.total
        self.total = max(self.total, over + len(steps))
        first = self.total - len(steps) + 1
        carried_s = 0.0
        self.left = []
        for number, (idle_s, pieces) in enumerate(steps, first):
            if rest_s := carried_s + idle_s:
                pieces = [Piece("rest", "", "rest", rest_s), *pieces]
            carried_s = idle_s
            self.left += [replace(piece, step=number) for piece in pieces]
        self._steps_of |= {piece.phase: piece.step for piece in self.left}

    def _steps(self, phases: Sequence[Phase], waiting: Sequence[Share]) -> Iterator[tuple[float, list[Piece]]]:
        """The steps ahead: how long the meters rest before and after each one, and its pieces."""
        compared = list(waiting)
        again = [phase for phase in phases if phase.purpose == "confirmation"]
        alone = [phase for phase in phases if phase.purpose in ("screening", "solo", "probe")]
        if self._header.candidates and not any(phase.purpose == "solo" for phase in self._phases):
            alone += self._likely()
        for phase in alone:
            rests = phase.purpose not in ("probe", "screening")
            yield (self._idle_s if rests else 0.0), _cell(phase.shares[0], phase.name)
            compared += phase.shares
        if not again and not any(phase.placement for phase in phases):
            yield from _comparing(compared)
        if not self._mixes(phases):
            return
        known = {phase.purpose for phase in self._phases}
        if again or (self._how.confirm and not known & {"confirmation", "mixed"}):
            shares = [phase.shares[0] for phase in again] or list(self._likely_again())
            yield self._idle_s, self._together(shares, [phase.name for phase in again])
            yield from _comparing([*([] if not again else compared), *shares])
        mixed = [phase for phase in self._phases if phase.purpose == "mixed"]
        ahead = {phase.name for phase in phases}
        for run in range(1 + sum(phase.name not in ahead for phase in mixed), self._how.mixes + 1):
            shares = list(mixed[-1].shares) if mixed else self._likely_mixed()
            yield self._idle_s, self._mix(shares, mixed[run - 1] if run <= len(mixed) else None)
            yield from _comparing(shares)
        parts = [phase for phase in self._phases if phase.purpose == "scaling"]
        begun = sum(phase.name not in ahead for phase in parts)
        for number in range(begun, max(len(parts), len(scales(self._header)))):
            part = parts[number] if number < len(parts) else None
            likely = list(mixed[-1].shares) if mixed else self._likely_mixed()
            guessed = [share.model_copy(update={"key": f"part{number}.{share.key}"}) for share in likely]
            shares = list(part.shares) if part else guessed
            yield self._idle_s, self._mix(shares, part)
            yield from _comparing(shares)

    def _together(self, shares: Sequence[Share], names: Sequence[str]) -> list[Piece]:
        """Several cells as one step, with the rests between them."""
        pieces: list[Piece] = []
        for number, share in enumerate(shares):
            if number and self._idle_s:
                pieces.append(Piece("rest", "", "rest", 2 * self._idle_s))
            pieces += _cell(share, names[number] if names else f"again {number}")
        return pieces

    def _mix(self, shares: Sequence[Share], phase: Phase | None) -> list[Piece]:
        limits, name = self._how.mix_limits, phase.name if phase else "mix"
        pieces = [_preparing(share, name) for share in shares]
        if phase and phase.placement:
            window_s = self._window_s(limits, phase.placement.mixes_per_s)
            return [*pieces, Piece("mix", "mix", "mix", window_s + HAND_OVER_S, phase=name)]
        open_ = limits.max_ns > OPEN * limits.min_ns
        return [*pieces, Piece("mix", "mix", "mix", _guess_s(limits) + HAND_OVER_S, phase=name, open=open_)]

    def _window_s(self, limits: Limits, mixes_per_s: float) -> float:
        """How long a mix of a known rate takes until each suite has done the feeds that it must."""
        assert self._header.mix is not None
        feeds_s = [
            limits.min_feeds * self._feed_units.get(suite, 1) / (units * mixes_per_s)
            for suite, units in self._header.mix.units.items()
            if mixes_per_s
        ]
        return min(limits.max_ns / SECOND, max(limits.min_ns / SECOND, 1.1 * max(feeds_s, default=0.0)))

    def _likely_mixed(self) -> list[Share]:
        """The shares of a mix that is not planned yet: each suite on each device, by the way of past runs."""
        likely: dict[tuple[str, str], Share] = {}
        for share in self._alone():
            update = {"key": f"later.{share.key}", "scenario": "mixed", "batch": 1, "limits": self._how.mix_limits}
            share = share.model_copy(update=update)
            place = share.route.suite, share.route.device
            if place not in likely or _preparing(share, "").row in self._past:
                likely[place] = share
        return list(likely.values())

    def _likely_again(self) -> list[Share]:
        """The routes that a plan not made yet may choose: a vertex of its linear program has no more of them."""
        likely = {(share.route.suite, share.route.device): share for share in self._alone()}
        most = len({suite for suite, _ in likely}) + len({device for _, device in likely}) - 1
        return [
            share.model_copy(update={"key": f"later.{share.key}", "batch": 1}) for share in list(likely.values())[:most]
        ]

    def _alone(self) -> Iterator[Share]:
        assert self._header.mix is not None
        for phase in [phase for phase in self._phases if phase.purpose == "solo"] or self._likely():
            yield from (share for share in phase.shares if share.route.suite in self._header.mix.units)

    def _likely(self) -> list[Phase]:
        """The phases that screening runs may choose: of each suite on each device the route that past runs measured,
        else the
        first; and the probes of those."""
        likely: dict[tuple[str, str], Share] = {}
        for share in (phase.shares[0] for phase in self._header.candidates if phase.purpose == "solo"):
            place, known = (share.route.suite, share.route.device), _cell(share, "")[1].row in self._past
            if place not in likely or (known and _cell(likely[place], "")[1].row not in self._past):
                likely[place] = share
        routes = {share.route.key for share in likely.values()}
        targets = {route[1:] for route in routes}
        return [
            phase
            for phase in self._header.candidates
            for key in [phase.shares[0].route.key]
            if key in routes or (phase.purpose == "probe" and key[1:] in targets)
        ]


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any: 5:09, 1:05:09."""
    whole = max(0, math.floor(seconds))
    minutes = f"{whole // 60 % 60}:{whole % 60:02d}"
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes.zfill(5)}"


def _cell(share: Share, phase: str) -> list[Piece]:
    row = f"{'screening' if share.limits.screening else 'measure'} {share.route.label}, {share.scenario}"
    guess_s = _guess_s(share.limits, share.scenario == "single-stream")
    return [_preparing(share, phase), Piece("measure", share.key, row, guess_s, like=share.scenario, phase=phase)]


def _preparing(share: Share, phase: str) -> Piece:
    """Starting a worker, loading, searching and warming up."""
    searches = share.scenario != "mixed" and (share.batch is None or share.scenario == "server")
    start_s = PROBE_START_S if share.scenario == "probe" else START_S[share.route.tier]
    guess_s = start_s + (share.limits.warmup_ns + searches * share.limits.search_ns) / SECOND
    row = f"prepare {share.route.label}, {share.scenario}" + (", with a search" if searches else "")
    row += ", as a screening run" if share.limits.screening else ""
    return Piece("prepare", share.key, row, guess_s, phase=phase)


def _guess_s(limits: Limits, single_stream: bool = False) -> float:
    """How long a window takes. Feeds in single file are few, so their speed is seldom known early."""
    least_s, most_s = limits.min_ns / SECOND, limits.max_ns / SECOND
    return LONG_FEED * most_s if single_stream and limits.half_width else math.sqrt(least_s * most_s)


def _comparing(shares: Sequence[Share]) -> Iterator[tuple[float, list[Piece]]]:
    """The step in which the answers of these shares are compared, suite by suite, if there is any to compare."""
    pieces: list[Piece] = []
    asked = [share for share in shares if share.limits.audits]
    for suite in dict.fromkeys(share.route.suite for share in asked):
        mine = [share for share in asked if share.route.suite == suite]
        tier, probe = mine[0].route.tier, mine[0].scenario == "probe"
        load_s = min(PROBE_START_S, REFERENCE_S[tier]) if probe else REFERENCE_S[tier]
        pieces.append(Piece("reference", suite, f"load the reference of {suite}", load_s))
        for share in mine:
            guess_s = share.limits.audits * (min(PROBE_COMPARE_S, COMPARE_S[tier]) if probe else COMPARE_S[tier])
            pieces.append(Piece("compare", share.key, f"compare {share.route.label}", guess_s))
    if pieces:
        yield 0.0, pieces
