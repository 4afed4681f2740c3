"""What a worker keeps of a window's outputs, and what its parent finds out about it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.worker.load_generator import FeedLog, closed_loop
from mixmark.harness.worker.outputs import AROUND_BYTES, Commitments, Outputs, capacity, ranks, staying
from tests.worker.test_load_generator import Yielding, given, limits

Handed = Mapping[str, Array]


def saved(outputs: Outputs, folder: Path) -> Handed:
    outputs.save(folder / "outputs.npz")
    with np.load(folder / "outputs.npz") as handed:
        return dict(handed)


def test_an_output_is_what_was_there_when_it_was_stamped(tmp_path: Path) -> None:
    class Late(Yielding):
        """Fills its array in once it has been stamped."""

        def __call__(self, feed: Feed) -> Iterator[Array]:
            out = np.zeros((1, 2), np.float32)
            yield out
            out[...] = 7

    kept = Outputs()
    closed_loop(Late(), given(), limits(min_feeds=3), new_log=partial(FeedLog, outputs=kept))
    handed = saved(kept, tmp_path)
    assert handed["serials"].tolist() == handed["finished"].tolist() == [0, 1, 2]
    assert handed["outputs"].tolist() == [[[0, 0]]] * 3


def test_views_are_kept_as_what_they_show(tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole.flags.writeable = False
    overlapping = np.lib.stride_tricks.as_strided(whole, (3, 4), (4, 4), writeable=False)
    for view in (whole, whole[:, ::-1], whole.reshape(4, 3).T, np.broadcast_to(whole[0], (3, 4)), overlapping):
        kept = Outputs()
        closed_loop(Yielding(view), given(), limits(min_feeds=1), new_log=partial(FeedLog, 3, kept))
        assert np.array_equal(saved(kept, tmp_path)["outputs"], [view])


def run(feeds: int, most: int, commitments: Commitments, folder: Path) -> Handed:
    """The outputs of `feeds` feeds, with room for `most`. An output is the number of its feed."""
    kept = Outputs(commitments.draw_key, most * (8 + AROUND_BYTES))
    for serial in range(feeds):
        output = np.array([serial])
        kept.add(serial, [output.tobytes()], output)
    commitments.window = kept.commitment
    return saved(kept, folder)


@pytest.mark.parametrize(("feeds", "most"), [(1000, 10), (1000, 999), (1000, 1), (7, 10), (11, 10)])
def test_the_parent_knows_which_outputs_stayed(tmp_path: Path, feeds: int, most: int) -> None:
    commitments = Commitments()
    handed = run(feeds, most, commitments, tmp_path)
    finished = handed["finished"]
    commitments.verify(finished, handed["digests"])
    required = sorted(commitments.required(finished, most))
    assert required == handed["serials"].tolist() == handed["outputs"][:, 0].tolist()
    assert len(finished) == feeds
    assert min(feeds, max(1, most // 2)) <= len(handed["serials"]) <= most
    assert set(commitments.fair_sample(finished, most)) <= set(handed["serials"])
    assert bool(commitments.draws) == (feeds > most)


@pytest.mark.slow
def test_every_feed_is_as_likely_to_be_in_the_sample(tmp_path: Path) -> None:
    """However often outputs were dropped before: 4 of 40 feeds stay, in 500 windows."""
    seen: Counter[int] = Counter()
    for _ in range(500):
        commitments = Commitments()
        handed = run(40, 8, commitments, tmp_path)
        sample = commitments.fair_sample(handed["finished"], 8)
        assert len(sample) == 4
        seen.update(sample.tolist())
    counts = np.array([seen[serial] for serial in range(40)])
    assert ((counts - 50) ** 2 / 50).sum() < 80  # chi-square of 39 degrees of freedom: 80 once in 10,000 times


def test_digests_match_the_commitments(tmp_path: Path) -> None:
    commitments = Commitments()
    handed = run(30, 10, commitments, tmp_path)
    finished, digests = handed["finished"], handed["digests"]
    commitments.digests = {0: digests[0].tobytes().hex()}
    commitments.verify(finished, digests)
    other = digests.copy()
    other[29] = 0
    with pytest.raises(WrongOutput, match="do not match the commitments"):  # after the commitment to the window
        commitments.verify(finished, other)
    commitments.window = None
    commitments.verify(finished, other)  # in a mix there is none
    for at in (0, 5):  # a digest that was sent with its feed, and one of outputs that were dropped
        other[at] = 0
        with pytest.raises(WrongOutput, match="do not match the commitments"):
            commitments.verify(finished, other)
        other[at] = digests[at]
    commitments.digests = {99: "00"}
    with pytest.raises(WrongOutput, match="do not match the commitments"):  # a feed is missing
        commitments.verify(finished, digests)


def test_outputs_are_dropped_when_they_must_be_and_not_before() -> None:
    finished = np.arange(30)
    for done in ([5], [11, 12], [31], [20, 11]):
        commitments = Commitments(draws=[(each, "", 1) for each in done])
        with pytest.raises(WrongOutput, match="before they outgrew"):
            commitments.required(finished, 10)


def test_ranks_depend_on_the_key_alone_and_look_random() -> None:
    serials = np.arange(10_000)
    one, other = ranks(1, serials), ranks(2, serials)
    assert len(np.unique(one)) == 10_000
    assert np.array_equal(one[::7], ranks(1, serials[::7]))
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.05
    assert abs(np.corrcoef(one.astype(float), serials)[0, 1]) < 0.05
    assert staying(one, 10).tolist() == np.argsort(one)[:5].tolist()


def test_feeds_follow_from_the_output_before_in_their_chain() -> None:
    finished, digests = np.arange(4), np.arange(64, dtype=np.uint8).reshape(4, 16)
    commitments = Commitments(chains=2)
    rows = [row.tobytes() for row in digests]
    found = commitments.previous_digests(finished, np.array([-1, -1, 0, 1]), digests)
    assert found == {0: b"", 1: b"", 2: rows[0], 3: rows[1]}
    assert commitments.previous_digests(finished, np.array([-1, 0, 1, 2]), digests)[3] == rows[2]
    for previous in ([-1, -1, -1, 0], [-1, -1, 0, 0], [-1, -1, 3, 2]):  # three chains; two after one; after a later one
        with pytest.raises(WrongOutput, match="one after another in 2 chains"):
            commitments.previous_digests(finished, np.array(previous), digests)
    with pytest.raises(WrongOutput, match="not finished"):
        commitments.previous_digests(finished + 3, np.array([-1, -1, 3, 1]), digests)
    handed_out = Commitments().previous_digests(finished, np.zeros(4, np.int64), digests)  # by the parent, in a mix
    assert set(handed_out.values()) == {b""}


def test_lanes_may_finish_in_any_order(tmp_path: Path) -> None:
    commitments = Commitments()
    kept = Outputs(commitments.draw_key, 50 * (8 + AROUND_BYTES))

    def lane(serials: range) -> None:
        for serial in serials:
            output = np.array([serial])
            kept.add(serial, [output.tobytes()], output)

    threads = [threading.Thread(target=lane, args=(range(begin, 1000, 4),)) for begin in (3, 2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commitments.window = kept.commitment
    handed = saved(kept, tmp_path)
    commitments.verify(handed["finished"], handed["digests"])
    assert sorted(commitments.required(handed["finished"], 50)) == handed["serials"].tolist()


def test_how_many_are_kept_depends_on_their_size() -> None:
    assert (capacity(0, 1000 * AROUND_BYTES), capacity(1 << 40)) == (1000, 1)
