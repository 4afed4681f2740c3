"""Entries and sites for tests."""

from __future__ import annotations

import dataclasses
import datetime
from typing import cast

from mixmark.harness.contracts.schema import Hosts, ScenarioName
from mixmark.harness.judge.findings import found
from mixmark.submissions.board.row import Website
from mixmark.submissions.entry import Entry
from tests.golden.sample import but
from tests.reporters.hostile import HOSTILE
from tests.submissions.entries import made

SUITES = {"llm": "1", "diffusion": "1", "dlrm": "1", "resnet50": "1"}
UNIT_WORDS = {
    "llm": "LLM tokens",
    "diffusion": "images drawn",
    "dlrm": "recommendations",
    "resnet50": "pictures classified",
}
SITE = Website("Mixmark leaderboard", "", datetime.date(2026, 11, 22), SUITES, UNIT_WORDS)
ESCAPE = "</script </script/ </script></template></title><script>document.title='owned'</script><!--"


def crowd(count: int) -> list[Entry]:
    return [made(number) for number in range(count)]


def hostile(number: int = 0, text: str = ESCAPE + HOSTILE) -> Entry:
    """An entry whose every text leaves its place, if it can; a check would reject most of it."""
    entry = made(number)
    declared, machine = entry.declaration, entry.machine
    words = dict.fromkeys(("organisation", "system", "origin", "licence", "notes", "form_factor", "availability"), text)
    price = declared.price and declared.price.model_copy(update={"source": text})
    devices = tuple(but(device, id=f"{text}{at}", name=text) for at, device in enumerate(machine.devices))
    mapped = {text: text}
    environment = but(machine.environments["torch"], origin=text, python=text, packages=mapped, vendor=mapped)
    facts = dict.fromkeys(("suite_version", "adapter", "precision"), text)
    scenario = cast(ScenarioName, text)
    solos = []
    for at, solo in enumerate(entry.solos):
        route = but(solo.route, **facts, suite=f"{text}{at % 3}", device=devices[at % len(devices)].id)
        names = but(solo.names, short=text)
        solos.append(dataclasses.replace(solo, route=route, unit=text, names=names, scenario=scenario))
    whole = but(machine.whole, **dict.fromkeys(("cpu_model", "operating_system", "kernel", "virtualization"), text))
    hosts = (Hosts(names=("host1",), system=whole),)
    return but(
        entry,
        **dict.fromkeys(("mixmark", "tuning", "unmeasured", "began_utc"), text),
        declaration=but(declared, **words, price=price),
        machine=but(machine, hosts=hosts, whole=whole, devices=devices, environments={text: environment}),
        reasons=dict.fromkeys(("division", "tuning", "grade", "ranked", "weight_class", "boundary"), (text,)),
        suites=mapped,
        commands=((text,),),
        runs=tuple(but(run, phase=text) for run in entry.runs),
        solos=tuple(solos),
        findings=(found("finished.failed", text, kind=text, message=text, hint=text),),
        signed=but(entry.signed, state="good", signer=text),
    )
