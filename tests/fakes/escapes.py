"""Adapters and packages that reach beyond their worker, and honest ones that look alike."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from mixmark import Device, Runner, Suite, Use
from tests.fakes.cheats import Chain, Cheats, Honest

OWNER = os.environ.get("PYTEST_XDIST_WORKER")  # tests of this file run at the same time, each with naps of its own
NAP = [sys.executable, "-S", "-c", f"import time; time.sleep(1000)  # of tests/fakes/escapes.py, {OWNER}"]
DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
time.sleep(1000)
"""


class Escapes(Cheats):
    """options: `as`, what the adapter does when a suite is opened. It answers honestly."""

    name = "escapes"

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        runner = Honest(Chain("smoke", {}), {})
        match self.options["as"]:
            case "daemon":  # neither in the worker's group nor its child any more
                subprocess.run([sys.executable, "-S", "-c", DAEMON], check=True)
                yield runner
            case "session":  # the worker's child in a session of its own, which nobody ends
                subprocess.Popen(NAP, start_new_session=True)
                yield runner
            case "server":  # the same, and the adapter ends it
                server = subprocess.Popen(NAP, start_new_session=True)
                yield runner
                server.kill()
                server.wait()
            case "child":  # it is in the worker's group, and goes with it
                subprocess.Popen(NAP)
                yield runner
            case "young-helper":  # it is born in the run, and the runner names it
                vars(runner)["processes"] = [subprocess.Popen(NAP, start_new_session=True).pid]
                yield runner
            case "helper":  # it was there before, and the runner names it
                vars(runner)["processes"] = [int(self.options["helper"])]  # optional, so the type does not have it
                yield runner
                if self.options.get("leaves"):
                    psutil.Process(int(self.options["helper"])).kill()
