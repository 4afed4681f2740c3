"""Entries and sites for tests."""

from __future__ import annotations

import datetime

from mixmark.harness.contracts.schema import Finding
from mixmark.submissions.board.row import Site
from mixmark.submissions.entry import Entry
from tests.fakes.entries import made
from tests.reporters.hostile import HOSTILE

SUITES = {"llm": "1", "diffusion": "1", "dlrm": "1", "resnet50": "1"}
CALLED = {
    "llm": "LLM tokens",
    "diffusion": "images drawn",
    "dlrm": "recommendations",
    "resnet50": "pictures classified",
}
SITE = Site("Mixmark leaderboard", "", datetime.date(2026, 11, 22), SUITES, CALLED)
ESCAPE = "</script </script/ </script></template></title><script>document.title='owned'</script><!--"


def crowd(count: int) -> list[Entry]:
    return [made(number) for number in range(count)]


def hostile(number: int = 0, text: str = ESCAPE + HOSTILE) -> Entry:
    """An entry in which every text leaves its place, if it can; a check would reject most of it."""
    entry = made(number)
    told, claim, machine = entry.declaration, entry.claim, entry.machine
    words = {name: text for name in ("organisation", "system", "origin", "licence", "notes", "cooling", "form_factor")}
    items = tuple(
        each.model_copy(update={"what": text, "unit_price": text, "currency": text, "locale": text, "source": text})
        for each in told.price
    )
    devices = tuple(
        each.model_copy(update={"id": f"{text}{at}", "name": text}) for at, each in enumerate(machine.devices)
    )
    software = machine.software[0].model_copy(
        update={"adapter": text, "origin": text, "python": text, "packages": {text: text}, "vendor": {text: text}}
    )
    cells = tuple(
        each.model_copy(
            update={name: text for name in ("suite_version", "unit", "short_unit", "adapter", "precision", "scenario")}
            | {"suite": f"{text}{at % 3}", "device": devices[at % len(devices)].id}
        )
        for at, each in enumerate(entry.solo_measurements)
    )
    named = {name: text for name in ("cpu_model", "operating_system", "kernel", "virtualization")}
    return entry.model_copy(
        update={
            "declaration": told.model_copy(update={**words, "availability": text, "price": items}),
            "claim": claim.model_copy(update={"mixmark": text, "tuning": text}),
            "machine": machine.model_copy(update={**named, "devices": devices, "software": (software,)}),
            "reasons": dict.fromkeys(("division", "tuning", "grade", "ranked", "weight_class", "boundary"), (text,)),
            "unmeasured": text,
            "suites": {text: text},
            "began_utc": text,
            "ended_utc": text,
            "commands": ((text,),),
            "runs": tuple(each.model_copy(update={"phase": text}) for each in entry.runs),
            "solo_measurements": cells,
            "findings": (Finding(rule=text, severity="warning", about=text, message=text),),
            "signed": entry.signed.model_copy(update={"state": "good", "signer": text}),
        }
    )
