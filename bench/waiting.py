"""Where the time of a run goes: by the purpose of its phases, and by what the workers do in them.

    python -m bench.waiting [OPTIONS OF mixmark run]

The last lines are when the score was there, the time of the run and its ETA at the start, and the part of the time in
which something is measured.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any, ClassVar
from unittest import mock

from mixmark.harness.cli import __main__, progress
from mixmark.harness.cli.progress import Progress
from mixmark.harness.measure.benchmark import AuditStarted, Event, Observer, Recorded, Scored
from mixmark.harness.measure.executor import PhaseStarted, StageStarted
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.resources import clock

WINDOW = "measuring"
BETWEEN = ("between the phases", "")


class Timed(Progress):
    """The progress of a run. Each event ends what went on before it."""

    spent_s: ClassVar[dict[tuple[str, str], float]] = defaultdict(float)
    """The seconds by purpose and activity, of all runs."""
    eta_s: ClassVar[float] = 0.0
    """The ETA of the whole run at its start."""
    scored_s: ClassVar[float | None] = None
    """When the score was there, on the clock of the progress."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._doing, self._since_s, self._purposes = BETWEEN, self.clock_s(), dict[str, str]()

    def __enter__(self) -> Observer:
        super().__enter__()
        Timed.eta_s = self.eta.total_s
        return self._timed

    def __exit__(self, *error: Any) -> None:
        self._now(BETWEEN)
        super().__exit__(*error)

    def _timed(self, event: Event) -> None:
        purpose = self._doing[0]
        match event:
            case PhaseStarted(phase=phase):
                self._purposes |= {share.key: phase.purpose for share in phase.shares}
                self._now((phase.purpose, "starting"))
            case StageStarted(share=share, stage=stage):
                self._now((self._purposes[share.key], stage))
            case MixSnapshot():
                self._now((purpose, WINDOW))
            case Recorded():
                self._now(BETWEEN)
            case Scored():
                Timed.scored_s = self.clock_s()
                self._now(BETWEEN)
            case AuditStarted():
                self._now(("audit", "loading the reference, comparing"))
            case _:
                self._now(BETWEEN if purpose == "audit" else self._doing)
        self.notify(event)

    def _now(self, doing: tuple[str, str]) -> None:
        now_s = self.clock_s()
        self.spent_s[self._doing] += now_s - self._since_s
        self._doing, self._since_s = doing, now_s


def main() -> None:
    began_s, code = clock.now_s(), 0
    words = ["mixmark", "run", *sys.argv[1:]]
    timed = mock.patch.object(progress, "Progress", Timed)
    with timed, mock.patch.object(sys, "argv", words):
        try:
            __main__.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    total_s = clock.now_s() - began_s
    rest_s = total_s - sum(Timed.spent_s.values())
    print(f"\n{'':32}{'':34}{'s':>7}{'%':>6}")
    for (purpose, activity), spent_s in [*sorted(Timed.spent_s.items()), (("before and after the run", ""), rest_s)]:
        print(f"{purpose:32}{activity:34}{spent_s:7.1f}{spent_s / total_s * 100:6.1f}")
    if Timed.scored_s is not None:
        print(f"score after {Timed.scored_s - began_s:.0f} s")
    print(f"{total_s:.0f} s, {Timed.eta_s:.0f} s expected")
    windows_s = sum(spent_s for (_, activity), spent_s in Timed.spent_s.items() if activity == WINDOW)
    print(f"{windows_s:.0f} s of them in windows: {windows_s / total_s:.3f}")
    sys.exit(code)


if __name__ == "__main__":
    main()
