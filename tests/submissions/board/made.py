"""Entries and sites for tests."""

from __future__ import annotations

import dataclasses
import datetime
from typing import cast

from mixmark.harness.contracts.schema import Hosts, ScenarioName
from mixmark.harness.judge.findings import found
from mixmark.submissions.board.row import Website
from mixmark.submissions.entry import Entry
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
    devices = tuple(
        device.model_copy(update={"id": f"{text}{index}", "name": text}) for index, device in enumerate(machine.devices)
    )
    environment = machine.environments["torch"].model_copy(
        update={"origin": text, "python": text, "packages": {text: text}, "vendor": {text: text}}
    )
    facts = dict.fromkeys(("suite_version", "adapter", "precision"), text)
    solos = tuple(
        dataclasses.replace(
            solo,
            route=solo.route.model_copy(
                update={**facts, "suite": f"{text}{index % 3}", "device": devices[index % len(devices)].id}
            ),
            unit=text,
            names=solo.names.model_copy(update={"short": text}),
            scenario=cast(ScenarioName, text),
        )
        for index, solo in enumerate(entry.solos)
    )
    whole = machine.whole.model_copy(
        update=dict.fromkeys(("cpu_model", "operating_system", "kernel", "virtualization"), text)
    )
    hosts = (Hosts(names=("host1",), system=whole),)
    disclosed = {"hosts": hosts, "whole": whole, "devices": devices, "environments": {text: environment}}
    return entry.model_copy(
        update={
            "declaration": declared.model_copy(update={**words, "price": price}),
            "mixmark": text,
            "tuning": text,
            "machine": machine.model_copy(update=disclosed),
            "reasons": dict.fromkeys(("division", "tuning", "grade", "ranked", "weight_class", "boundary"), (text,)),
            "unmeasured": text,
            "suites": {text: text},
            "began_utc": text,
            "commands": ((text,),),
            "runs": tuple(run.model_copy(update={"phase": text}) for run in entry.runs),
            "solos": solos,
            "findings": (found("finished.failed", text, kind=text, message=text, hint=text),),
            "signed": entry.signed.model_copy(update={"state": "good", "signer": text}),
        }
    )
