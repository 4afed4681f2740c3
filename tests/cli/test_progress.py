"""What a person sees while a run goes on, on a clock that the test turns."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from mixmark.harness.cli.eta import FREE_S, GROWS, SOON_S, Promise, clock
from mixmark.harness.contracts.schema import Failure, Result, Share
from mixmark.harness.judge.energy.total import CurrentPower
from tests import traces
from tests.traces import Look, Played, Trace, header, paced, quiet, snapshot

THRICE = {"prepare": 3.0, "mixed": 3.0, "reference": 3.0}
"""A machine on which everything that is loaded takes three times as long."""


def is_kept(looks: list[Look]) -> None:
    """What is promised of every run: see the assertions."""
    least: dict[bool, int] = {}
    for before, now in itertools.pairwise(looks):
        assert 0 <= before.bar <= now.bar <= 1, "the bar never runs backwards"
        assert 0 <= before.step <= now.step <= now.total == before.total, "the steps told are those that come"
    for look in looks:
        assert look.told.seconds >= SOON_S, "no zero"
        if look.told.seconds == SOON_S:
            assert not re.search(r"\d", str(look.told)), "what is near is told in words"
        if look.at_s >= FREE_S:
            most = least.setdefault(look.told.whole, look.told.seconds)
            assert look.told.seconds <= GROWS * most, "it never grows by more than a tenth"
            least[look.told.whole] = min(most, look.told.seconds)


def lines(played: Played) -> list[str]:
    """Each line that was written, with its continuation."""
    return re.sub(r"\n +", " ", played.out.getvalue()).splitlines()


def words(display: str) -> list[str]:
    return [word for word in display.split() if not set(word) & set("━╸╺")]


def left(played: Played) -> list[str]:
    """When each step begins: what is told of the time left, and what is left."""
    first = {look.step: look for look in reversed(played.looks) if look.at_s < played.now_s}
    return [
        f"{clock(played.now_s - look.at_s)}: {str(look.told).removeprefix('about ').removesuffix(' left')}"
        for _, look in sorted(first.items())
    ]


def test_the_recorded_run_tells_its_end_from_the_first_line() -> None:
    played = Played(header(), quiet()).play()
    is_kept(played.looks)
    assert left(played) == [
        *("10:34: 12:43", "10:26: 12:28", "9:34: 11:30", "8:49: 10:28", "8:10: 9:29", "7:44: 8:15", "7:39: 8:05"),
        *("7:33: 7:55", "6:31: 7:16", "5:33: 6:39", "4:58: 5:54", "4:34: 5:04", "4:27: 4:58", "3:23: 3:37"),
        "0:38: 0:42",
    ]


def test_a_second_run_knows_the_first() -> None:
    past = Played(header(), quiet()).play().progress.pace.times
    played = Played(header(), quiet(), past=past).play()
    is_kept(played.looks)
    assert left(played) == [
        *("10:34: 11:01", "10:26: 11:40", "9:34: 10:12", "8:49: 9:16", "8:10: 8:31", "7:44: 8:03", "7:39: 7:55"),
        *("7:33: 7:47", "6:31: 6:44", "5:33: 5:44", "4:58: 5:07", "4:34: 4:42", "4:27: 4:36", "3:23: 3:35"),
        "0:38: 0:42",
    ]


def test_that_loading_takes_three_times_as_long_is_found_out_in_the_first_minute() -> None:
    played = Played(header(), paced(quiet(), THRICE)).play()
    is_kept(played.looks)
    assert left(played) == [
        *("18:44: 12:43", "18:24: 16:45", "17:02: 18:30", "15:45: 17:48", "14:22: 16:34", "13:34: 13:42"),
        *("13:22: 13:17", "13:07: 13:03", "11:33: 12:21", "9:44: 12:02", "8:30: 10:26", "7:47: 8:34", "7:32: 8:20"),
        *("5:27: 5:53", "1:28: 1:36"),
    ]


def test_a_cell_that_fails_takes_its_comparison_along_and_not_the_mix() -> None:
    played = Played(header(), quiet(), fails=lambda share: share.key.startswith("008")).play()
    is_kept(played.looks)
    assert left(played)[8:] == [
        *("5:50: 7:16", "5:24: 6:21", "4:49: 5:39", "4:24: 4:52", "4:18: 4:45", "3:23: 3:34", "0:38: 0:42")
    ]
    assert "answers compared with the reference: 11 of 11 agree" in played.out.getvalue()


def test_without_a_route_for_a_suite_no_mix_is_told() -> None:
    played = Played(header(), quiet(), fails=lambda share: share.route.suite == "diffusion").play()
    is_kept(played.looks)
    assert left(played)[8:] == ["2:07: 7:11", "1:42: 2:23", "1:07: 1:43", "0:42: 1:03", "0:36: 0:57"]


def test_a_run_goes_on_with_the_steps_that_are_left() -> None:
    first = Played(header(), quiet()).play(most_phases=7)
    played = Played(first.resumed(), quiet(), past=first.progress.pace.times).play()
    is_kept(played.looks)
    assert played.lines[-1] == "[8/8] answers compared with the reference: 4 of 4 agree"
    assert "[6/8] answers compared with the reference: 12 of 12 agree" in played.out.getvalue()
    assert left(played) == [
        *("7:34: 8:55", "6:31: 8:06", "5:33: 7:46", "4:58: 6:21", "4:34: 5:13", "4:27: 5:06", "3:23: 3:39"),
        "0:38: 0:42",
    ]


def test_a_mix_of_unknown_length_is_no_part_of_what_is_told_until_a_run_has_shown_it() -> None:
    first = Played(header("standard"), quiet()).play()
    is_kept(first.looks)
    assert left(first)[-4:] == ["6:44: 3:44 to the mix", "4:03: 1:23 to the mix", "3:23: 4:00", "0:38: 0:39"]
    second = Played(header("standard"), quiet(), past=first.progress.pace.times).play()
    is_kept(second.looks)
    assert all(look.told.whole for look in second.looks)
    assert left(second)[-4:] == ["6:44: 6:59", "4:03: 4:17", "3:23: 3:32", "0:38: 0:39"]


def test_the_rests_of_the_meters_are_counted() -> None:
    played = Played(header(), quiet(), metered=True).play()
    is_kept(played.looks)
    bare = Played(header(), quiet()).play()
    assert played.now_s - bare.now_s == pytest.approx(9 * 2 * 5), "8 cells and the mix, 5 s before and after each"
    assert played.looks[0].told.seconds - bare.looks[0].told.seconds == 9 * 2 * 5


def test_what_takes_longer_than_promised_is_said_and_not_shown_as_growth() -> None:
    past = Played(header(), quiet()).play().progress.pace.times
    played = Played(header(), {**quiet(), "measure llm onnxruntime": [900.0]}, past=past, terminal=True)
    with_llm = next(n for n, phase in enumerate(played.header.phases) if phase.name.startswith("007")) + 1
    played.play(most_phases=with_llm)
    is_kept(played.looks)
    assert str(played.looks[-1].told) == "more than 7:25 left, slower than expected"
    assert "[9/15]" in played.display()


def test_a_piece_that_takes_too_long_is_said_to() -> None:
    played = Played(header(), quiet(), width=100)
    share = played.header.phases[0].shares[0]
    played.observer.started(share)
    played.observer.stage(share, "loading")
    played.sleep(16)
    assert "loading, 0:16\n" in re.sub(" +\n", "\n", played.display()), "6 s were expected, and 10 s more are no news"
    played.sleep(1)
    assert "loading, 0:17, longer than expected" in played.display()


SECONDS = st.floats(0.1, 300)
KINDS = sorted({name.split()[0] for name in quiet()})


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # to shrink is slow
@given(
    preset=st.sampled_from(["quick", "standard"]),
    factors=st.fixed_dictionaries({kind: st.floats(0.1, 6) for kind in KINDS}),
    single=st.dictionaries(st.sampled_from(sorted(quiet())), SECONDS, max_size=6),
    past=st.dictionaries(st.sampled_from(sorted(Played(header(), quiet()).play().progress.pace.times)), SECONDS),
    failing=st.sets(st.integers(0, 11), max_size=4),
    interrupted=st.integers(1, 20),
    metered=st.booleans(),
)
def test_the_promise_is_kept_whatever_happens(
    preset: str,
    factors: dict[str, float],
    single: dict[str, float],
    past: dict[str, float],
    failing: set[int],
    interrupted: int,
    metered: bool,
) -> None:
    trace: Trace = {**paced(quiet(), factors), **{name: [seconds] for name, seconds in single.items()}}

    def fails(share: Share) -> bool:
        return int(share.key[:3]) in failing if share.key[:3].isdigit() else False

    def run(start: Result, most_phases: int) -> Played:
        played = Played(start, trace, past=past, fails=fails, metered=metered, tick_s=8.0)
        is_kept(played.play(most_phases).looks)
        return played

    first = run(header(preset), interrupted)
    last = run(first.resumed(), 1000)
    assert not last.progress.pace.left and last.looks[-1].told.seconds == SOON_S
    assert last.progress.pace.share(last.now_s) == 1


@given(st.lists(st.tuples(st.floats(0, 600), st.floats(0, 1e5)), min_size=1))
def test_a_promise_never_grows_by_more_than_a_tenth_and_says_so(steps: list[tuple[float, float]]) -> None:
    promise, elapsed_s, least = Promise(), 0.0, None
    for later_s, left_s in steps:
        elapsed_s += later_s
        told = promise.tell(elapsed_s, left_s, whole=True)
        assert told.seconds >= SOON_S
        assert (
            told.more == (left_s > max(SOON_S, told.seconds) * GROWS or False) or abs(left_s - told.seconds * GROWS) < 1
        )
        if elapsed_s >= FREE_S:
            assert least is None or told.seconds <= GROWS * least
            least = min(told.seconds, least or told.seconds)


def test_a_promise_in_numbers() -> None:
    promise = Promise()
    told = [str(promise.tell(at, left_s, whole=True)) for at, left_s in PROMISED]
    assert told == [
        *("about 10:00 left", "about 20:00 left", "about 16:40 left", "about 13:20 left", "about 14:40 left"),
        *("more than 14:40 left, slower than expected", "about 0:50 left", "more than 0:55 left, slower than expected"),
        *("finishing", "finishing", "finishing later than expected"),
    ]
    assert str(Promise().tell(0, 7300, whole=False)) == "about 2:01:40 to the mix"
    assert str(Promise().tell(0, 7, whole=False)) == "the mix comes next"


PROMISED = [(0, 600), (59, 1200), (60, 1000), (61, 800), (62, 900), (63, 1000), (64, 50), (65, 90), (66, 3), (67, 33)]
PROMISED += [(68, 34)]


def test_the_mix_shows_devices_streams_against_what_is_due_and_mixes() -> None:
    played = Played(header(), quiet(), terminal=True)
    played.observer.mixing(snapshot({"llm": 50.2, "dlrm": 1000.0}, elapsed_s=100))
    shown = [line.split() for line in played.display().splitlines()]
    assert ["cpu:0", "llm"] in shown and ["npu:a", "idle"] in shown
    assert ["llm", "25", "of", "67", "due", "0.50", "mixes"] in shown, "100 s at 0.0133 mixes a second"


def test_watts_are_shown_as_far_as_they_are_known() -> None:
    played = Played(header(), quiet(), terminal=True)
    assert "W" not in played.display()
    played.drawn = CurrentPower(235.04, "wall")
    assert "W" not in played.display(), "once a second is enough"
    played.now_s += 1
    assert "235.0 W, wall" in played.display()
    played.drawn = CurrentPower(90.0, None)
    played.now_s += 1
    assert "90.0 W, of the metered part only" in played.display()
    played.drawn = None
    played.now_s += 1
    assert "W" not in played.display(), "unknown is not 0"


@pytest.mark.parametrize("width", [40, 60, 79, 80, 200])
def test_it_fits_the_terminal_and_breaks_no_word(width: int) -> None:
    long, whole = (Played(header(), quiet(), terminal=True, width=each, tick_s=10) for each in (width, 10_000))
    for played in (long, whole):
        played.drawn = CurrentPower(1_234.5, None)
        played.shows = True
        played.play()
    for narrow, wide in zip(long.shown, whole.shown, strict=True):
        assert max(map(len, narrow.splitlines())) <= width
        assert sorted(words(narrow)) == sorted(words(wide)), "a cell of a table may take two lines"
    assert max(map(len, long.lines)) <= width
    assert long.out.getvalue().split() == whole.out.getvalue().split()


def test_a_file_gets_a_line_for_each_step_and_more_where_a_step_is_long() -> None:
    played = Played(header(), quiet()).play()
    assert played.lines == LINES
    assert max(map(len, played.lines)) <= 80


LINES = """\
[1/15] probe on cpu:0 by torch in bf16: ceilings known, about 12:29 left
[2/15] llm on cpu:0 by torch in bf16: 1,000 tok/s, about 11:31 left
[3/15] diffusion on cpu:0 by torch in bf16: 1,000 img/s, about 10:29 left
[4/15] dlrm on cpu:0 by torch in bf16: 1,000 samples/s, about 9:30 left
[5/15] resnet50 on cpu:0 by torch in bf16: 1,000 img/s, about 8:16 left
[6/15] probe on cpu:0 by torch in bf16: ceilings known, about 8:06 left
[7/15] probe on cpu:0 by onnxruntime in fp32: ceilings known, about 7:56 left
[8/15] llm on cpu:0 by onnxruntime in fp32: 1,000 tok/s, about 7:17 left
[9/15] diffusion on cpu:0 by onnxruntime in fp32: 1,000 img/s, about 6:40 left
[10/15] dlrm on cpu:0 by onnxruntime in fp32: 1,000 samples/s, about 5:55 left
[11/15] resnet50 on cpu:0 by onnxruntime in fp32: 1,000 img/s, about 5:05 left
[12/15] probe on cpu:0 by onnxruntime in fp32: ceilings known, about 4:59 left
[13/15] comparing with the reference: dlrm by onnxruntime, about 4:09 left
[13/15] answers compared with the reference: 12 of 12 agree, about 3:38 left
[14/15] the mix, on all devices: 0.50 mixes, about 2:30 left
[14/15] the mix, on all devices: 0.50 mixes, about 1:30 left
[14/15] in the mix, llm on cpu:0 by torch in bf16: 1,000 tok/s
[14/15] in the mix, diffusion on cpu:0 by torch in bf16: 1,000 img/s
[14/15] in the mix, dlrm on cpu:0 by torch in bf16: 1,000 samples/s
[14/15] in the mix, resnet50 on cpu:0 by torch in bf16: 1,000 img/s
[15/15] answers compared with the reference: 4 of 4 agree
""".splitlines()


def test_what_a_stranger_named_moves_no_cursor() -> None:
    played = Played(header(), quiet(), width=200)
    phase = played.header.phases[0]
    share = phase.shares[0]
    named = share.model_copy(update={"route": share.route.model_copy(update={"adapter": "acme\x1b[2J\x1b]0;x\x07"})})
    played.observer.started(named)
    played.observer.stage(named, "loading \x9b5A")
    failure = Failure(kind="crashed", message="it said \x1b[31mno\r\ntwice")
    played.observer.recorded(traces.made(named, phase, failure))
    shown = played.display() + played.out.getvalue()
    assert "\x1b" not in shown and "\x9b" not in shown and "\r" not in shown
    assert "[1/15] probe on cpu:0 by acme in bf16: crashed: it said no twice, about" in played.out.getvalue()


@pytest.mark.parametrize(
    ("environment", "terminal"), [({"TERM": "dumb"}, True), ({}, False)], ids=["dumb terminal", "file"]
)
def test_where_no_cursor_moves_there_are_only_lines(environment: dict[str, str], terminal: bool) -> None:
    played = Played(header(), quiet())
    played.progress.console = Console(file=played.out, width=80, force_terminal=terminal, _environ=environment)
    with played.progress:  # which would start a thread
        played.play()
    assert played.lines == LINES
