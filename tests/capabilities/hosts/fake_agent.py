"""A stand-in for `mixmark agent`: it takes its options, replies to pings, and refuses all else with facts about itself.

`--config` names its fault: `dies`, `chatters`, `silent`, `old` or `stays`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from mixmark.harness.capabilities.hosts import messages
from mixmark.harness.capabilities.hosts.messages import AgentCalls
from mixmark.harness.capabilities.hosts.streams import Pipes, lines
from mixmark.harness.contracts.schema import Failure
from mixmark.harness.worker.calls import Call, Failed, read, write_failed, write_reply


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
        pipes.send(b'{"mixmark": "9.9", "code": ""}\n' if fault == "old" else messages.arrival())
    for line in lines(pipes.receive):
        call = read(line, AgentCalls)
        if isinstance(call, Call) and call.name == "ping":
            pipes.send(write_reply(AgentCalls.ping, (call.arguments["sent_ns"], time.monotonic_ns())))
        else:
            facts = f"{options.name} {os.getpid()} {options.cores or '-'} {child}"
            pipes.send(write_failed(Failed(failure=Failure(kind="raised", message=facts))))
    if fault == "stays":
        time.sleep(300)


if __name__ == "__main__":
    main()
