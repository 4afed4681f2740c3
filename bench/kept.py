"""What an engine could keep: how far outputs that are made of earlier ones are from the right one.

    python -m bench.kept SUITE TIER [--kept N] [--feeds N]

The engine has the outputs for N earlier feeds and computes no network. It yields the earlier one of the feed that
is most like the new one, with the mean of all, or with the combination of all whose feeds come closest to the new feed
(least squares with a ridge of 1 % of the mean square). For llm, whose outputs are tokens: with the output from 16 feeds
before, and with the most frequent token of 16 outputs at each place. The row `oracle` knows the right output: it is the
combination of 32 earlier outputs that comes closest to it, which no engine can find. For dlrm it also counts the pairs
of neighbouring lookups in a bag that an earlier sample had too, whose sum of rows could be kept, and how many there are
where all rows are drawn anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from bench.false_alarms import opened
from mixmark.harness.contracts.protocols import Array, Feed, Suite
from mixmark.harness.measure.audit import REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.worker import load_generator
from mixmark.suites.dlrm import HOTNESS, Dlrm, _popular

SEED = 5
VOTES = 16
ORACLE = 32


def issued(suite: Suite, batch: int, count: int) -> list[Feed]:
    return list(map(suite.feeds(batch, SEED), range(count)))


def described(feed: Feed) -> Array:
    """A feed's numbers in one row, on which likeness is judged."""
    parts = [each.reshape(-1).astype(np.float64) for each in feed.values() if each.dtype.kind in "fu"]
    return np.concatenate(parts)


def combined(before: Array, feed: Array, outputs: Array) -> Array:
    """The combination of outputs [kept, …] whose feeds `before` [kept, numbers] come closest to `feed`."""
    gram = before @ before.T
    gram[np.diag_indices_from(gram)] += 0.01 * gram.trace() / len(gram)
    return np.tensordot(np.linalg.solve(gram, before @ feed), outputs, 1)


def targets(feeds: list[Feed], outputs: Array, at: int, kept: int) -> Iterator[tuple[str, Array]]:
    """outputs: [feeds, …] of each. at: the feed that is asked; those before it are kept."""
    earlier = outputs[at - kept : at].astype(np.float64)
    if outputs.dtype.kind != "f":
        yield f"the output from {VOTES} feeds before", outputs[at - VOTES]
        votes = outputs[at - VOTES : at]
        yield f"the most frequent token of {VOTES}", np.array([np.bincount(column).argmax() for column in votes.T])
        return
    before = np.array([described(each) for each in feeds[at - kept : at]])
    now = described(feeds[at])
    likeness = before @ now / np.linalg.norm(before, axis=1)
    yield "the output for the feed that is most alike", outputs[at - kept + int(likeness.argmax())]
    yield "the mean of all", earlier.mean(0).astype(outputs.dtype)
    yield "the combination by feeds", combined(before, now, earlier).astype(outputs.dtype)
    chosen = earlier[np.argsort(-likeness)[:ORACLE]].reshape(ORACLE, -1)
    truth = outputs[at].reshape(-1).astype(np.float64)
    if len(truth) > ORACLE:
        factors, *_ = np.linalg.lstsq(chosen.T, truth, rcond=None)
        yield "oracle", (factors @ chosen).reshape(outputs[at].shape).astype(outputs.dtype)


def recurring(suite: Dlrm, samples: int) -> str:
    """Pairs of neighbouring lookups in one bag that an earlier feed had too, in feeds as issued and drawn anew."""
    rows = np.repeat(np.array(suite.shape.rows), HOTNESS)
    bags = np.repeat(np.arange(len(HOTNESS)), HOTNESS)
    pairs = np.flatnonzero(bags[1:] == bags[:-1])
    issues = issued(suite, samples, 16)
    told = []
    anew = np.random.default_rng(0)
    for indices in (
        [feed["indices"].T.astype(np.int64) for feed in issues],
        [_popular(anew, samples, rows) for _ in issues],
    ):
        before, last = np.concatenate(indices[:-1]), indices[-1]
        shares = [
            np.isin(last[:, at] * 2**32 + last[:, at + 1], before[:, at] * 2**32 + before[:, at + 1]).mean()
            for at in pairs
        ]
        told.append(f"{float(np.mean(shares)) * 100:.1f} %")
    return f"Pairs of lookups that recur after {15 * samples:,} samples: {told[0]} as issued, {told[1]} drawn anew."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("tier", choices=("smoke", "edge"))
    parser.add_argument("--kept", type=int, default=64)
    parser.add_argument("--feeds", type=int, default=8)
    asked = parser.parse_args()
    suite: Suite = registry.suite(asked.suite, registry.BUILT_IN["suites"][asked.suite], asked.tier, {})
    feeds = issued(suite, 1, asked.kept + asked.feeds)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        runner = opened(stack, f"{REFERENCE}:fp32", suite)
        outputs = np.stack([np.concatenate([load_generator.plain(out) for out in runner(feed)]) for feed in feeds])
        referee = opened(stack, f"{REFERENCE}:fp32", suite.reference())
        for at in range(asked.kept, len(feeds)):
            for name, output in targets(feeds, outputs, at, asked.kept):
                right = np.concatenate([load_generator.plain(out) for out in referee({**feeds[at], "output": output})])
                found.setdefault(name, []).append(suite.quality(output, right))
    print(f"| {asked.kept} earlier outputs kept | least | median | most |\n|---|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {min(values):.2g} | {float(np.median(values)):.2g} | {max(values):.2g} |")
    if isinstance(suite, Dlrm):
        print(f"\n{recurring(suite, 256)}")


if __name__ == "__main__":
    main()
