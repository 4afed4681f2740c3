"""A result whose every free text tries to break out of its place."""

from __future__ import annotations

from mixmark.harness.contracts.schema import Absent, Device, Environment, Failure, Result, Route, SuiteFacts, UnitNames
from tests.golden.sample import MS, closed_loop, record, result

OWNED = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\n\u202e\u2066\x7f"
MARKUP = "\"'><script>document.title='owned'</script><img src=https://evil.example/x onerror=alert(1)>&"
TABLE = "| `b` **b** [x](https://evil.example) | # x"
HOSTILE = f"=cmd() {TABLE}{OWNED}{MARKUP}"  # a name is cut: what breaks a table comes first
LONG = HOSTILE + "x" * 10_000


def hostile(text: str = HOSTILE) -> Result:
    done = closed_loop([[5 * MS + feed, 2 * MS, 2 * MS] for feed in range(70)])
    route = Route(
        suite=text,
        tier="edge",
        suite_version=text,
        device=f"gpu:{text}",
        adapter=text,
        precision="fp32",
        options={text: text},
        suite_options={text: text},
        weights=text,
    )
    measured = record("a", text, text, done).model_copy(
        update={"route": route, "facts": {text: text}, "exempt": None, "unaudited": text, "phase": text}
    )
    failed = record("b", "llm", "token", adapter=text, error=Failure(kind="crashed", message=text, hint=text))
    whole = result(measured, failed, absent=(Absent(kind="adapter", name=text, reason=text),))
    named = dict.fromkeys(
        ("cpu_model", "kernel", "operating_system", "virtualization", "container", "governor", "python", "mixmark"),
        text,
    )
    mapped = {key: {text: text} for key in ("packages", "environment", "caches", "cgroup_limits")}
    system = whole.system.model_copy(update={**named, **mapped, "accelerators": ({text: text},), "cpu_flags": (text,)})
    devices = (Device(id="cpu:0", kind="gpu", name=text, memory_pool=text),)
    return whole.model_copy(
        update={
            "system": system,
            "devices": devices,
            "environments": {
                text: Environment(
                    origin=text, spec=text, python=text, mixmark=text, packages={text: text}, vendor={text: text}
                )
            },
            "created_utc": text,
            "preset": text,
            "command": (text,),
            "suites": (
                SuiteFacts(
                    name=text,
                    version=text,
                    unit=text,
                    unit_names=UnitNames(short=text, work=text, first_unit=text, per_unit=text),
                ),
            ),
        }
    )
