"""A result whose every free text tries to break out of its place."""

from __future__ import annotations

from mixmark.harness.contracts.schema import Absent, Device, Environment, Failure, Result, SuiteFacts, UnitNames
from tests.golden.sample import MS, but, closed_loop, record, result

OWNED = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\n\u202e\u2066\x7f"
MARKUP = "\"'><script>document.title='owned'</script><img src=https://evil.example/x onerror=alert(1)>&"
TABLE = "| `b` **b** [x](https://evil.example) | # x"
HOSTILE = f"=cmd() {TABLE}{OWNED}{MARKUP}"  # a name is cut: what breaks a table comes first
LONG = HOSTILE + "x" * 10_000


def hostile(text: str = HOSTILE) -> Result:
    done = closed_loop([[5 * MS + feed, 2 * MS, 2 * MS] for feed in range(70)])
    mapped = {text: text}
    plain = record("a", text, text, done, adapter=text, device=f"gpu:{text}")
    route = but(plain.route, suite_version=text, options=mapped, suite_options=mapped, weights=text)
    measured = but(plain, route=route, facts=mapped, exempt=None, unaudited=text, phase=text)
    failed = record("b", "llm", "token", adapter=text, error=Failure(kind="crashed", message=text, hint=text))
    whole = result(measured, failed, absent=(Absent(kind="adapter", name=text, reason=text),))
    named = dict.fromkeys(
        ("cpu_model", "kernel", "operating_system", "virtualization", "container", "governor", "python", "mixmark"),
        text,
    )
    maps = dict.fromkeys(("packages", "environment", "caches", "cgroup_limits"), mapped)
    ran = Environment(origin=text, spec=text, python=text, mixmark=text, packages=mapped, vendor=mapped)
    names = UnitNames(short=text, work=text, first_unit=text, per_unit=text)
    return but(
        whole,
        system=but(whole.system, **named, **maps, accelerators=(mapped,), cpu_flags=(text,)),
        devices=(Device(id="cpu:0", kind="gpu", name=text, memory_pool=text),),
        environments={text: ran},
        created_utc=text,
        preset=text,
        command=(text,),
        suites=(SuiteFacts(name=text, version=text, unit=text, unit_names=names),),
    )
