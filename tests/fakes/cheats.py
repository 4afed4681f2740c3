"""Engines that look faster than they are, or answer nonsense, and the suite that they do it to.

The option `as` of the adapter names the class below. Those that patch the harness do more than an adapter may; they
show what the parent process notices all the same.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness import drive
from harness.schema import Completions
from mixmark import (
    Array,
    Cost,
    Device,
    Feed,
    Gate,
    Graph,
    LatencyLimits,
    Runner,
    Session,
    Suite,
    UnitNames,
    Use,
    Value,
    Weights,
)
from suites.answers import checked
from tests.fakes.null import NoWeights

DEVICE = Device(id="npu:cheat0", kind="npu", memory_pool="npu:cheat0", memory_bytes=8 << 30, precisions=("fp32",))
TOKENS = 4
WORK_S = 0.001  # a token


def tokens(ids: Array) -> list[int]:
    """Each depends on all ids and on the token before it."""
    out = [0]
    for _ in range(TOKENS):
        out.append(int((ids * np.arange(1, len(ids) + 1)).sum() + 31 * out[-1]) % 997)
    return out[1:]


class Chain:
    """Four tokens for each of three prompts, whose first id is drawn anew for each feed."""

    name = "chain"
    version = "1"
    unit = "token"
    unit_names = UnitNames(short="tok")
    config: Mapping[str, Value] = {}
    scenarios: Sequence[str] = ("single-stream", "offline")
    latency: LatencyLimits | None = None

    def __init__(self, tier: str, options: Mapping[str, str]) -> None:
        self.tier = tier

    def weights(self) -> Weights:
        return NoWeights()

    def graphs(self) -> Mapping[str, Graph]:
        return {}

    def feeds(self, batch: int, seed: int) -> Iterator[Feed]:
        rng = np.random.default_rng(seed)
        pool = rng.integers(0, 997, (3, 8))
        while True:
            for prompt in pool:
                prompt[0] = rng.integers(1 << 40)
                yield {"ids": prompt.copy()}

    def units(self, batch: int) -> int:
        return TOKENS

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        for token in tokens(feed["ids"]):
            yield np.array([token])

    def gate(self, precision: str) -> Gate | None:
        return Gate(metric="wrong tokens", at_most=0.5 if precision == "fp32" else 0.9)

    def reference(self) -> Suite:
        return self

    def quality(self, answer: Array, reference: Array) -> float:
        return float((checked(answer, reference.shape, "int64") != reference).sum())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        return (Cost(name="token", flops=1, bytes=1, yields=TOKENS),)


class Honest:
    """Works for each token, and tells it when it has it."""

    slots = 1
    facts: Mapping[str, str] = {"engine": "chain"}

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        self.suite = suite
        self.options = options

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in tokens(feed["ids"]):
            time.sleep(WORK_S)
            yield np.array([token])


class Skipping(Honest):
    """Computes nothing, and waits a quarter of the time so that it looks good and not absurd."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for _ in range(TOKENS):
            time.sleep(WORK_S / 4)
            yield np.zeros(1, np.int64)


# --- less work --------------------------------------------------------------------------------------------------


class Caching(Honest):
    """By the prompt, but for its first id."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.known: dict[bytes, list[Array]] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        key = feed["ids"][1:].tobytes()
        if key not in self.known:
            self.known[key] = list(super().__call__(feed))
        yield from self.known[key]


class Outliving(Honest):
    """Keeps the answers to whole feeds in the folder `memory`, for the next worker; a file `hits` tells of use."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        memory = Path(self.options["memory"])
        memory.mkdir(exist_ok=True)
        known = memory / feed["ids"].tobytes().hex()
        if known.exists():
            (memory / "hits").touch()
        else:
            known.touch()
        yield from super().__call__(feed)


class Tiring(Skipping):
    """Works while it is warmed up, and for a few feeds more."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.left = 10

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.left -= 1
        yield from (Honest.__call__(self, feed) if self.left > 0 else super().__call__(feed))


class EverySecond(Skipping):
    """Works on every second feed only."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.turn = 0

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.turn += 1
        yield from (Honest.__call__(self, feed) if self.turn % 2 else super().__call__(feed))


class Early(Honest):
    """Yields arrays that a thread fills in later."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        promised = [np.zeros(1, np.int64) for _ in range(TOKENS)]

        def work() -> None:
            for array, token in zip(promised, tokens(feed["ids"]), strict=True):
                time.sleep(WORK_S)
                array[0] = token

        threading.Thread(target=work).start()
        yield from promised


class Guessing(Honest):
    """Works for the first half of its tokens."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at, token in enumerate(super().__call__(feed)):
            if at == TOKENS // 2:
                break
            yield token
        for _ in range(TOKENS // 2):
            yield np.zeros(1, np.int64)


class Cut(Honest):
    """Stops half-way."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at, token in enumerate(super().__call__(feed)):
            if at == TOKENS // 2:
                return
            yield token


class Padding(Honest):
    """Counts one token more than there is."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from super().__call__(feed)
        yield np.zeros(1, np.int64)


class Bundling(Honest):
    """Tells all tokens at the end, as one that decodes them together would."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield np.concatenate(list(super().__call__(feed)))


# --- nonsense ---------------------------------------------------------------------------------------------------


class Odd(Honest):
    """Puts something in the place of each token."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in super().__call__(feed):
            yield self.odd(token)

    def odd(self, token: Array) -> Any:
        return token


class Wide(Odd):
    def odd(self, token: Array) -> Any:
        return np.repeat(token[:, None], 2, axis=1)


class Scalar(Odd):
    def odd(self, token: Array) -> Any:
        return token[0]


class Narrow(Odd):
    def odd(self, token: Array) -> Any:
        return token.astype(np.int32)


class Double(Odd):
    def odd(self, token: Array) -> Any:
        return token.astype(np.float64)


class NotANumber(Odd):
    def odd(self, token: Array) -> Any:
        return np.full(1, np.nan, np.float32)


class Infinite(Odd):
    def odd(self, token: Array) -> Any:
        return np.full(1, np.inf, np.float32)


class Nothing(Odd):
    def odd(self, token: Array) -> Any:
        return None


class Ragged(Odd):
    def odd(self, token: Array) -> Any:
        return [[1], [1, 2]]


class Empty(Odd):
    def odd(self, token: Array) -> Any:
        return token[:0]


class Nested(Odd):
    def odd(self, token: Array) -> Any:
        return (each for each in [token])


class Attached(Odd):
    """To a graph of gradients, as a tensor of torch's may be, which numpy then cannot have."""

    def odd(self, token: Array) -> Any:
        return self

    def __array__(self, *_: object, **__: object) -> Array:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


class Hollow(Odd):
    """One row a unit, and nothing in it."""

    def odd(self, token: Array) -> Any:
        return np.zeros((1, 0), np.float32)


class Huge(Odd):
    """A gigabyte a token, none of which was ever touched."""

    def odd(self, token: Array) -> Any:
        return np.broadcast_to(np.float32(0), (1, 1 << 28))


class Listed(Odd):
    """What numpy takes for an array is one."""

    def odd(self, token: Array) -> Any:
        return token.tolist()


class Reusing(Honest):
    """One buffer for all tokens: what was in it when it was stamped is the answer."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.buffer = np.zeros(1, np.int64)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in super().__call__(feed):
            self.buffer[...] = token
            yield self.buffer
            self.buffer[...] = -1


class Stubborn(Honest):
    """Goes on when it is closed, as warm-up closes its last feed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in super().__call__(feed):
            try:
                yield token
            except GeneratorExit:
                yield token


class Returning(Honest):
    """Nothing that could be iterated over."""

    def __call__(self, feed: Feed) -> Any:
        return None


class Growing(Honest):
    """The first feed's tokens are scalars a row, the next one's are pairs."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.width = 0

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.width += 1
        for token in super().__call__(feed):
            yield np.repeat(token[:, None], self.width, axis=1)


class Mute(Honest):
    def __call__(self, feed: Feed) -> Iterator[Array]:
        return iter(())


class Endless(Honest):
    def __call__(self, feed: Feed) -> Iterator[Array]:
        while True:
            yield np.zeros(1, np.int64)


class Breaking(Honest):
    """Raises in the middle of a feed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from super().__call__(feed)
        raise ConnectionError("the engine is gone")


# --- a suite bent to suit --------------------------------------------------------------------------------------


def _one_feed(*_: Any) -> Iterator[Feed]:
    while True:
        yield {"ids": np.ones(8, np.int64)}


class Bending(Honest):
    """Bends the suite that it was given: one feed for ever, of one unit."""

    def __init__(self, suite: Any, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        suite.feeds = _one_feed
        suite.units = lambda batch: 1
        suite.quality = lambda answer, reference: 0.0
        self.answers = [np.array([token]) for token in tokens(next(_one_feed())["ids"])]

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.answers


class BendingFeeds(Bending):
    """Bends the class, and with it the harness's suite in the same process."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        kind: Any = type(suite)
        kind.feeds = _one_feed
        kind.quality = lambda suite, answer, reference: 0.0


class BendingUnits(Honest):
    """Says that a feed has one unit, and works for one."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        kind: Any = type(suite)
        kind.units = lambda suite, batch: 1

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield next(super().__call__(feed))


class Foreseeing(Honest):
    """Works while the next feed is made, where nothing is timed."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        kind: Any = type(suite)
        feeds = kind.feeds
        self.ready: list[Array] = []

        def foreseen(suite: Chain, batch: int, seed: int) -> Iterator[Feed]:
            for feed in feeds(suite, batch, seed):
                self.ready = list(Honest.__call__(self, feed))
                yield feed

        kind.feeds = foreseen

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.ready


# --- a harness bent to suit ------------------------------------------------------------------------------------


def _slow() -> drive.Clock:
    real, begin_ns = time.monotonic_ns, time.monotonic_ns()
    return lambda: begin_ns + (real() - begin_ns) // 4


def _ticking_by(clock: drive.Clock) -> None:
    """The drive loop, whose clock is its default, bound when it was defined."""
    loop: Any = drive.closed_loop
    loop.__defaults__ = tuple(clock if each is time.monotonic_ns else each for each in loop.__defaults__)


class SlowingTime(Honest):
    """Patches the module that everybody takes the time from."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        vars(time)["monotonic_ns"] = _slow()


class SlowingTheLoop(Honest):
    """Patches the drive loop's own clock."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        _ticking_by(_slow())


class TurningBack(Honest):
    """Its clock jumps back at every second look."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        real, looks = time.monotonic_ns, iter(range(1 << 60))
        _ticking_by(lambda: real() - 100_000_000 * (next(looks) % 2))


class TurningBackTime(Honest):
    """The module's clock jumps back at every second look."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        real, looks = time.monotonic_ns, iter(range(1 << 60))
        vars(time)["monotonic_ns"] = lambda: real() - 100_000_000 * (next(looks) % 2)


class Owing(Honest):
    """Takes units back with each stamp that it tells."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        log: Any = drive.Log
        feed = log.feed

        def owed(*given: Any, **more: Any) -> Any:
            issued_ns, marks, digest = feed(*given, **more)
            return issued_ns, [-each if at % 2 else each for at, each in enumerate(marks)], digest

        log.feed = owed


class Babbling(Honest):
    """Finds the pipe to the parent, and says what is no answer."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for each in map(int, sys.argv[1:2]):
            os.write(each, b"5\n{\n\xff\n")
        yield from super().__call__(feed)


class Amending(Skipping):
    """Computes the answers when the window is over, before they are written."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        self.seen: dict[int, Feed] = {}
        log: Any = drive.Log
        feed = log.feed

        def noted(log: drive.Log, runner: Runner, given: Feed, *rest: Any, serial: int = 0) -> Any:
            self.seen[serial] = given
            return feed(log, runner, given, *rest, serial=serial)

        log.feed = noted
        self.patch(drive.Answers)

    def patch(self, answers: Any) -> None:
        save = answers.save

        def amended(answers: Any, path: Path) -> None:
            self.amend(answers)
            save(answers, path)

        answers.save = amended

    def amend(self, answers: Any) -> None:
        """Those that are right, by the work that was saved."""
        right = {
            serial: b"".join(token.tobytes() for token in Honest.__call__(self, feed))
            for serial, feed in self.seen.items()
        }
        answers._kept = [(serial, answer, drive.digest(serial, answer)) for serial, answer in right.items()]


class AmendingSooner(Amending):
    """… before they are sealed, and thus before the window is over for the parent. In a mixed phase each was sealed
    by its feed."""

    def patch(self, answers: Any) -> None:
        sealed = answers.seal.fget

        def amended(answers: Any) -> str:
            self.amend(answers)
            return str(sealed(answers))

        answers.seal = property(amended)


class Choosing(EverySecond):
    """Keeps the answers for which it worked."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        answers: Any = drive.Answers
        add = answers.add

        def chosen(answers: drive.Answers, serial: int, *rest: Any) -> Any:
            return add(answers, serial, *rest) if self.turn % 2 else b""

        answers.add = chosen


class Loading(EverySecond):
    """Loads the dice."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        dice: Any = random.SystemRandom
        dice.random = lambda dice: 0.0
        dice.sample = lambda dice, among, count: list(among)[:count]


class Forging(Honest):
    """Tells two feeds for each that it finished."""

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        super().__init__(suite, options)
        module: Any = drive
        merged = module.merged

        def forged(logs: Iterable[drive.Log]) -> Completions:
            done = merged(logs)
            ends = np.arange(1, 2 * len(done) + 1) * TOKENS
            twice = np.repeat(done.issued_ns, 2)
            marks = np.repeat(done.marks_ns.reshape(-1, TOKENS), 2, axis=0).ravel()
            return Completions(twice, twice, ends, marks, np.ones_like(marks))

        module.merged = forged


# --- a ceiling that is too high -----------------------------------------------------------------------------------


class Boasting:
    """Answers the probe with numbers that look like its own, and computes nothing."""

    slots = 1

    def __init__(self, suite: Suite, options: Mapping[str, str]) -> None:
        self.facts: dict[str, str] = {}
        self.units = suite.units(1)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at in range(self.units):
            time.sleep(0.001)
            yield feed["nonce"][0, at : at + 1] * 100


class Squeezing:
    """Runs the probe with its matrices rounded to four bits, which are faster to read."""

    slots = 1

    def __init__(self, suite: Suite, options: Mapping[str, str]) -> None:
        import torch

        from bench.separation import integers
        from harness.adapters.torch import _Session

        self.facts: dict[str, str] = {}
        self.suite = suite
        self.session = _Session(suite, torch.device("cpu"), torch.float32, self.facts)
        for module in self.session._modules.values():
            for tensor in module.parameters():
                tensor.data = integers(tensor.data, 4)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.suite.infer(self.session, feed)


class Cheats:
    """options: `as`, one of the classes above; others are theirs."""

    name = "cheats"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def discover(self) -> Iterable[Device]:
        return (DEVICE,)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        yield globals()[self.options["as"]](suite, self.options)
