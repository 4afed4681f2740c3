"""Engines that look faster than they are, or output nonsense, and the suite that they do it to.

The option `as` of the adapter names the class below. Those that patch the harness do more than an adapter may; they
show what the parent process notices all the same.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mixmark import Array, Cost, Device, Feed, Feeds, Gate, LatencyLimits, Runner, Session, Suite, UnitNames, Use
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Completions
from mixmark.harness.contracts.seeds import poisson
from mixmark.harness.resources import clock
from mixmark.harness.worker import child, load_generator
from mixmark.harness.worker import outputs as kept
from mixmark.harness.worker.messages import ParentCalls
from mixmark.suites.limits import check_output, gate_bound
from tests.fakes.null import Null

DEVICE = Device(
    id="npu:cheat0", kind="npu", memory_pool="npu:cheat0", memory_bytes=8 << 30, precisions=("fp32", "int8")
)
TOKENS = 4
WORK_S = 0.001  # a token


def tokens(ids: Array) -> list[int]:
    """Each depends on all ids and on the token before it."""
    out = [0]
    for _ in range(TOKENS):
        out.append(int((ids * np.arange(1, len(ids) + 1)).sum() + 31 * out[-1]) % 997)
    return out[1:]


class Chain(Null):
    """Four tokens for each of three prompts, whose first id is drawn anew for each feed."""

    name = "chain"
    unit = "token"
    unit_names = UnitNames(short="tok", work="LLM tokens")
    scenarios: Sequence[str] = ("single-stream", "offline")
    latency: LatencyLimits | None = None

    def feeds(self, batch: int, seed: int) -> Feeds:
        pool = np.random.default_rng(seed).integers(0, 997, (3, 8))
        return lambda nonce: {"ids": np.append(nonce % (1 << 40), pool[nonce % 3, 1:])}

    def units(self, batch: int) -> int:
        return TOKENS

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        for token in tokens(feed["ids"]):
            yield np.array([token])

    def gate(self, precision: str) -> Gate | None:
        at_most = gate_bound({"16 bits": 0.5, "fp8": 3.5, "int8": 1.5, "int4": 1.5}, precision)
        return Gate(metric="wrong tokens", at_most=at_most)

    def quality(self, output: Array, reference: Array) -> float:
        return float((check_output(output, reference.shape, "int64") != reference).sum())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        return (Cost(name="token", flops=1, bytes=1, yields=TOKENS),)


class Bulky(Chain):
    """Each token comes with so much else that few outputs fit into the memory for them."""

    name = "bulky"

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        for token in super().infer(session, feed):
            yield bulk(token)


def bulk(token: Array) -> Array:
    """A megabyte for a token; all of it is zero for the token 0."""
    return np.repeat(token[:, None], 1 << 17, axis=1)


class Honest:
    """Works for each token, and yields it then."""

    concurrency = 1
    facts: Mapping[str, str] = {"engine": "chain"}

    def __init__(self, suite: Chain, options: Mapping[str, str]) -> None:
        self.suite: Any = suite
        self.options = options
        self.start()

    def start(self) -> None:
        """What a cheat does when it is opened."""

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


def around(owner: Any, name: str, how: Callable[..., Any]) -> None:
    """Replaces a function of the harness by `how`, which gets the real one before its arguments."""
    real = getattr(owner, name)
    setattr(owner, name, lambda *given, **more: how(real, *given, **more))


# --- less work --------------------------------------------------------------------------------------------------


class Caching(Honest):
    """Caches outputs by the prompt without its first token."""

    def start(self) -> None:
        self.known: dict[bytes, list[Array]] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        key = feed["ids"][1:].tobytes()
        if key not in self.known:
            self.known[key] = list(super().__call__(feed))
        yield from self.known[key]


class Outliving(Honest):
    """Keeps the outputs for whole feeds in the folder `memory`, for the next worker; a file `hits` shows its use."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        memory = Path(self.options["memory"])
        memory.mkdir(exist_ok=True)
        known = memory / feed["ids"].tobytes().hex()
        if known.exists():
            (memory / "hits").touch()
        else:
            known.touch()
        yield from super().__call__(feed)


class Overhearing(Honest):
    """Reads every seed on the stack while it warms up, and computes the outputs that would follow from it."""

    def start(self) -> None:
        self.known: dict[bytes, list[Array]] = {}
        self.heard: set[int] = set()

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if not self.known:
            for seed in self.seeds():
                made = Chain("smoke", {}).feeds(1, seeds.pool(seed))
                for ids in (made(seeds.nonce(seed, serial))["ids"] for serial in range(1000)):
                    self.known[ids.tobytes()] = [np.array([token]) for token in tokens(ids)]
        yield from self.known.get(feed["ids"].tobytes()) or super().__call__(feed)

    def seeds(self) -> set[int]:
        """All whole numbers in the frames that called, and in what lies there."""
        found: set[int] = set()
        frame = sys._getframe()
        while frame.f_back:
            frame = frame.f_back
            for value in frame.f_locals.values():
                found |= {each for each in (value, *getattr(value, "__dict__", {}).values()) if type(each) is int}
        return {each for each in found if each >= 0}


class Tiring(Skipping):
    """Works while it warms up and for a few feeds more."""

    def start(self) -> None:
        self.left = 10

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.left -= 1
        yield from (Honest.__call__(self, feed) if self.left > 0 else super().__call__(feed))


class EverySecond(Skipping):
    """Works on every second feed only."""

    def start(self) -> None:
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
    """Works for the first half of its tokens, and guesses the rest."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at, token in enumerate(super().__call__(feed)):
            if at == TOKENS // 2:
                break
            yield token
        for _ in range(TOKENS // 2):
            yield np.zeros(1, np.int64)


class Cut(Honest):
    """Stops half-way through a feed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at, token in enumerate(super().__call__(feed)):
            if at == TOKENS // 2:
                return
            yield token


class Bundling(Honest):
    """Yields all tokens at the end of a feed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield np.concatenate(list(super().__call__(feed)))


# --- nonsense ---------------------------------------------------------------------------------------------------


def odd(deed: str, changed: Callable[[Array], Any]) -> type[Honest]:
    """An engine that puts something in the place of each token."""

    class Odd(Honest):
        def __call__(self, feed: Feed) -> Iterator[Array]:
            return map(changed, super().__call__(feed))

    Odd.__doc__ = deed
    return Odd


Narrow = odd("Yields int32.", lambda token: token.astype(np.int32))
NotANumber = odd("Yields NaN.", lambda token: np.full(1, np.nan, np.float32))
Hollow = odd("Yields rows without a value.", lambda token: np.zeros((1, 0), np.float32))
Huge = odd("Yields a gigabyte for each token.", lambda token: np.broadcast_to(np.float32(0), (1, 1 << 28)))
Listed = odd("Yields lists, which numpy takes for arrays.", lambda token: token.tolist())


class Reusing(Honest):
    """Uses one buffer for all tokens."""

    def start(self) -> None:
        self.buffer = np.zeros(1, np.int64)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in super().__call__(feed):
            self.buffer[...] = token
            yield self.buffer
            self.buffer[...] = -1


class Stubborn(Honest):
    """Goes on when its generator is closed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for token in super().__call__(feed):
            try:
                yield token
            except GeneratorExit:
                yield token


class Growing(Honest):
    """Yields pairs from the second feed on."""

    def start(self) -> None:
        self.width = 0

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.width += 1
        for token in super().__call__(feed):
            yield np.repeat(token[:, None], self.width, axis=1)


class Endless(Honest):
    """Never stops yielding."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        while True:
            yield np.zeros(1, np.int64)


# --- a suite bent to suit --------------------------------------------------------------------------------------


def _one_feed(*_: Any) -> Feeds:
    return lambda nonce: {"ids": np.ones(8, np.int64)}


class Bending(Honest):
    """Changes the suite object that it was given: one feed for ever, of one unit."""

    def start(self) -> None:
        suite = self.suite
        suite.feeds = _one_feed
        suite.units = lambda batch: 1
        suite.quality = lambda output, reference: 0.0
        self.outputs = [np.array([token]) for token in tokens(_one_feed()(0)["ids"])]

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.outputs


class BendingFeeds(Bending):
    """Changes the suite's class: one feed for ever, and a gate that is always kept."""

    def start(self) -> None:
        super().start()
        kind = type(self.suite)
        kind.feeds = _one_feed
        kind.quality = lambda suite, output, reference: 0.0


class BendingUnits(Honest):
    """Changes the suite's class: a feed has one unit."""

    def start(self) -> None:
        type(self.suite).units = lambda suite, batch: 1

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield next(super().__call__(feed))


class Foreseeing(Honest):
    """Computes the output of a feed while the feed is made."""

    def start(self) -> None:
        kind = type(self.suite)
        feeds = kind.feeds
        self.ready: list[Array] = []

        def foreseen(suite: Chain, batch: int, seed: int) -> Feeds:
            made = feeds(suite, batch, seed)

            def foresee(nonce: int) -> Feed:
                feed: Feed = made(nonce)
                self.ready = list(Honest.__call__(self, feed))
                return feed

            return foresee

        kind.feeds = foreseen

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.ready


# --- a harness bent to suit ------------------------------------------------------------------------------------


def _slow() -> load_generator.Clock:
    real, begin_ns = time.monotonic_ns, time.monotonic_ns()
    return lambda: begin_ns + (real() - begin_ns) // 4


class SlowingTime(Honest):
    """Slows the clock of the module `time`."""

    def start(self) -> None:
        vars(time)["monotonic_ns"] = _slow()


class SlowingTheClock(Honest):
    """Slows the clock of the worker."""

    def start(self) -> None:
        vars(clock)["now_ns"] = _slow()


class Shifting(Honest):
    """Draws arrivals of its own, which leave it more time."""

    def start(self) -> None:
        vars(child)["poisson"] = lambda rate_per_s, seed: (at * 10_000_000 for at in itertools.count(1))


class Quitting(Honest):
    """Ends the schedule before a queue grows."""

    def start(self) -> None:
        vars(child)["poisson"] = lambda *given: itertools.chain(itertools.islice(poisson(*given), 20), [10**12])


class Leaving(Honest):
    """Ends its window after the first feed."""

    def start(self) -> None:
        def leave(loop: Any, runner: Runner, feeds: Any, limits: Any, **rest: Any) -> Any:
            return loop(runner, feeds, limits.model_copy(update={"min_ns": 0, "min_feeds": 1}), **rest)

        around(load_generator, "closed_loop", leave)


class TurningBack(Honest):
    """Turns the clock of the worker back at every second look."""

    def start(self) -> None:
        real, looks = time.monotonic_ns, iter(range(1 << 60))
        vars(clock)["now_ns"] = lambda: real() - 100_000_000 * (next(looks) % 2)


class Owing(Honest):
    """Takes units back with each timestamp."""

    def start(self) -> None:
        def owe(run: Any, *given: Any, **more: Any) -> Any:
            marks, digest = run(*given, **more)
            return [-each if at % 2 else each for at, each in enumerate(marks)], digest

        around(load_generator.FeedLog, "run", owe)


class Babbling(Honest):
    """Writes noise to the pipe to the parent."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for each in map(int, sys.argv[1:2]):
            os.write(each, b"5\n{\n\xff\n")
        yield from super().__call__(feed)


class Amending(Skipping):
    """Computes right outputs after the window."""

    def start(self) -> None:
        self.seen: dict[int, Feed] = {}

        def note(run: Any, log: Any, runner: Runner, given: Feed, *rest: Any, serial: int = 0, **how: Any) -> Any:
            self.seen[serial] = given
            return run(log, runner, given, *rest, serial=serial, **how)

        around(load_generator.FeedLog, "run", note)
        self.patch()

    def patch(self) -> None:
        def save(real: Any, outputs: Any, path: Path) -> None:
            self.amend(outputs)
            real(outputs, path)

        around(kept.Outputs, "save", save)

    def amend(self, outputs: Any) -> None:
        """Those that are right, by the work that was saved."""
        right = {
            serial: b"".join(token.tobytes() for token in Honest.__call__(self, feed))
            for serial, feed in self.seen.items()
        }
        outputs._kept = list(right.items())
        outputs._digests = bytearray(b"".join(kept.digest(*each) for each in right.items()))
        outputs._hash = hashlib.sha256(outputs._digests)


class AmendingSooner(Amending):
    """Computes right outputs at the end of the window, before the worker commits to them."""

    def patch(self) -> None:
        kind: Any = kept.Outputs
        committed = kind.commitment.fget

        def amended(outputs: Any) -> str:
            self.amend(outputs)
            return str(committed(outputs))

        kind.commitment = property(amended)


class Choosing(EverySecond):
    """Keeps only the outputs for which it worked."""

    def start(self) -> None:
        super().start()
        around(kept.Outputs, "add", lambda add, *given: add(*given) if self.turn % 2 else b"")


class Hiding(EverySecond):
    """Keeps only the outputs for which it worked when some of them are dropped."""

    def start(self) -> None:
        super().start()

        def drop(real: Any, outputs: Any, most: int) -> None:
            everything = dict(outputs._kept)
            real(outputs, most)
            right = [(serial, output) for serial, output in everything.items() if any(output)]
            outputs._kept = right[: len(outputs._kept)]
            outputs._ranks = outputs._ranks[: len(outputs._kept)]

        around(kept.Outputs, "_drop", drop)


class Forging(Honest):
    """Reports two feeds for each that it finished."""

    def start(self) -> None:
        def forge(merged: Any, logs: Iterable[load_generator.FeedLog]) -> Completions:
            done = merged(logs)
            ends = np.arange(1, 2 * len(done) + 1) * TOKENS
            twice = np.repeat(done.issued_ns, 2)
            marks = np.repeat(done.yielded_ns.reshape(-1, TOKENS), 2, axis=0).ravel()
            return Completions(twice, twice, ends, marks, np.ones_like(marks))

        around(load_generator, "merged", forge)


class Preparing(Honest):
    """Computes all feeds between the arrival of the seed and its first timestamp."""

    def start(self) -> None:
        self.known: dict[bytes, list[Array]] = {}

        def prepare(loop: Any, runner: Runner, feeds: load_generator.NextFeed, *rest: Any, **more: Any) -> Any:
            before = b""
            for serial in range(400):
                feed = feeds(serial, before)
                outputs = list(Honest.__call__(self, feed))
                self.known[feed["ids"].tobytes()] = outputs
                before = kept.digest(serial, b"".join(output.tobytes() for output in outputs))
            return loop(runner, feeds, *rest, **more)

        around(load_generator, "closed_loop", prepare)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.known.get(feed["ids"].tobytes()) or super().__call__(feed)


class Resealing(Skipping):
    """Commits a second time, to better outputs."""

    def start(self) -> None:
        def measure(real: Any, service: Any, *, key: str, **arguments: Any) -> None:
            real(service, key=key, **arguments)
            service.parent.call(ParentCalls.sealed, key=key, commitment="00" * 32)

        around(child.AdapterService, "measure", measure)


class Reopening(Skipping):
    """Opens its window a second time."""

    def start(self) -> None:
        def measure(real: Any, service: Any, *, key: str, **arguments: Any) -> None:
            service.parent.call(ParentCalls.stage, name="measuring")
            real(service, key=key, **arguments)

        around(child.AdapterService, "measure", measure)


class Piping(Honest):
    """Puts a pipe in the place of its timestamps, so that a reader would wait for ever."""

    def start(self) -> None:
        def measure(real: Any, service: Any, *, out: str, **arguments: Any) -> None:
            real(service, out=out, **arguments)
            os.unlink(out)
            os.mkfifo(out)

        around(child.AdapterService, "measure", measure)


class Unsealed(Honest):
    """Never commits to its outputs."""

    def start(self) -> None:
        def call(real: Any, parent: Any, method: Any, **to: Any) -> Any:
            return method is ParentCalls.sealed or real(parent, method, **to)

        around(child.Channel, "call", call)


class Forestalling(Honest):
    """Takes each timestamp of a feed as if the feed took a tenth of its time."""

    def start(self) -> None:
        def early(run: Any, log: Any, *given: Any, **more: Any) -> Any:
            marks, digest = run(log, *given, **more)
            issued_ns = log.issued_ns[-1]
            marks[::2] = [issued_ns + (each - issued_ns) // 10 for each in marks[::2]]
            log.yields[-len(marks) :] = type(log.yields)("q", marks)
            return marks, digest

        around(load_generator.FeedLog, "run", early)


class Announcing(Honest):
    """Reports its first token before it has computed it."""

    def start(self) -> None:
        def announce(
            run: Any, log: Any, runner: Runner, feed: Feed, clock: Any, due_ns: Any = None, serial: int = 0, **how: Any
        ) -> Any:
            tell, log.on_first = log.on_first, None
            if tell:
                tell(serial, 1, b"a guess")
            done = run(log, runner, feed, clock, due_ns, serial, **how)
            log.on_first = tell
            return done

        around(load_generator.FeedLog, "run", announce)


class Slipping(Honest):
    """Quantised so coarsely that the first tokens of each output are wrong; option `wrong`: how many."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at, token in enumerate(super().__call__(feed)):
            yield token + (at < int(self.options["wrong"]))


# --- a ceiling that is too high -----------------------------------------------------------------------------------


class Boasting:
    """Outputs the probe with numbers that look like its own, and computes nothing."""

    concurrency = 1

    def __init__(self, suite: Suite, options: Mapping[str, str]) -> None:
        self.facts: dict[str, str] = {}
        self.units = suite.units(1)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for at in range(self.units):
            time.sleep(0.001)
            yield feed["nonce"][0, at : at + 1] * 100


class Squeezing:
    """Runs the probe with its matrices rounded to four bits, which are faster to read."""

    concurrency = 1

    def __init__(self, suite: Suite, options: Mapping[str, str]) -> None:
        import torch

        from bench.separation import integers
        from mixmark.harness.adapters.torch import TorchSession

        self.facts: dict[str, str] = {}
        self.suite = suite
        self.session = TorchSession(suite, torch.device("cpu"), torch.float32, torch.get_num_threads(), self.facts)
        for module in self.session._modules.values():
            for tensor in module.parameters():
                tensor.data = integers(tensor.data, 4)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.suite.infer(self.session, feed)


class Anticipating:
    """Computes the kernels of the probe while its feed is made, so that they take no time."""

    concurrency = 1

    def __init__(self, suite: Suite, options: Mapping[str, str]) -> None:
        import torch

        from mixmark.harness.adapters.torch import TorchSession

        self.facts: dict[str, str] = {}
        self.ready: list[Array] = []
        session = TorchSession(suite, torch.device("cpu"), torch.float32, torch.get_num_threads(), self.facts)
        kind: Any = type(suite)
        feeds = kind.feeds

        def anticipated(suite: Suite, batch: int, seed: int) -> Feeds:
            made = feeds(suite, batch, seed)

            def anticipate(nonce: int) -> Feed:
                feed: Feed = made(nonce)
                self.ready = [np.asarray(each).copy() for each in suite.infer(session, feed)]
                return feed

            return anticipate

        kind.feeds = anticipated

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield from self.ready


class Bundled:
    """An engine whose tokens come in bulk."""

    concurrency = 1

    def __init__(self, engine: Honest) -> None:
        self.engine, self.facts = engine, engine.facts

    def __call__(self, feed: Feed) -> Iterator[Array]:
        return map(bulk, self.engine(feed))


class Cheats:
    """options: `as`, one of the classes above; the class gets all others."""

    name = "cheats"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def discover(self) -> Iterable[Device]:
        return (DEVICE,)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        engine = globals()[self.options["as"]](suite, self.options)
        yield Bundled(engine) if isinstance(suite, Bulky) else engine
