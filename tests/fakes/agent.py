"""A stand-in for `mixmark agent`: it takes its options, replies to pings, and refuses all else with facts about itself.

`--config` names its fault: `dies`, `chatters`, `silent`, `old`, `floods` or `stays`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from mixmark.harness.contracts.schema import Failure
from mixmark.harness.measure.cluster import messages
from mixmark.harness.measure.cluster.streams import Pipes, lines
from mixmark.harness.worker.messages import Failed, read, write


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name")
    parser.add_argument("--config", default="")
    parser.add_argument("--cores", default="")
    options = parser.parse_args(sys.argv[1:])
    fault = options.config
    if fault == "dies":
        sys.exit("no accelerator \x1b[31mhere")
    if fault == "chatters":
        print("Welcome to this machine!", flush=True)
    pipes = Pipes.standard()
    print("a library prints this", flush=True)
    child = subprocess.Popen(["sleep", "300"], start_new_session=True).pid if fault == "stays" else 0
    if fault != "silent":
        arrived = messages.arrived()
        pipes.send(write(arrived.model_copy(update={"mixmark": "9.9"}) if fault == "old" else arrived))
    for line in lines(pipes.receive):
        message = read(line, messages.MESSAGES)
        if fault == "floods":
            pipes.send(b"x" * (17 << 20))
        if isinstance(message, messages.Ping):
            pipes.send(write(messages.Pong(sent_ns=message.sent_ns, theirs_ns=time.monotonic_ns())))
        else:
            facts = f"{options.name} {os.getpid()} {options.cores or '-'} {child}"
            pipes.send(write(Failed(failure=Failure(kind="raised", message=facts))))
    if fault == "stays":
        time.sleep(300)


if __name__ == "__main__":
    main()
