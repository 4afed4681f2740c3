"""A stand-in for `mixmark agent` that takes its options, reads its secret, greets, and answers each line with its name.

What a test wants of it is named by `--config`: `dies`, `silent`, `chatters`, `stays` or `stranger`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time

from mixmark.harness.measure.cluster.launchers.listener import call
from mixmark.harness.measure.cluster.link import Link, Pipes, Stranger, take_secret


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--name")
    options.add_argument("--config", default="")
    options.add_argument("--cores", default="")
    options.add_argument("--connect", default="")
    given = options.parse_args(sys.argv[1:])
    if given.config == "dies":
        sys.exit("no accelerator \x1b[31mhere")
    if given.config == "chatters":
        print("Welcome to this machine!", flush=True)
    pipes = Pipes.standard()
    secret = take_secret(pipes)
    if given.config == "silent":
        pipes.recv(1 << 16)  # the greeting
        pipes.recv(1)
        return
    stream = call(given.connect, given.name) if given.connect else pipes
    link = Link(stream, b"a guess" if given.config == "stranger" else secret, "agent")
    child = ""
    if given.config == "stays":
        child = str(subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    with contextlib.suppress(BrokenPipeError, Stranger):
        while line := link.receive(300):
            link.send(f"{given.name} {os.getpid()} {given.cores or '-'} {child or '-'} ".encode() + line)
    if given.config == "stays":
        time.sleep(300)


if __name__ == "__main__":
    main()
