"""Made-up entries in any number: `made(number)` returns an Entry as a check would; nothing is read or written."""

from __future__ import annotations

import datetime
import random
from typing import Any

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Boundary, Device, Environment, Hosts, UnitNames
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.score import Grade
from mixmark.harness.judge.solo import Energy, Solo
from mixmark.submissions.entry import Declaration, DisclosedMachine, Entry, MixedRun, Price, Signed
from tests.fakes.solos import solo
from tests.golden.sample import system

MAKERS = ("Acme", "Borealis", "Cobalt", "Dynamo", "Ember", "Fathom", "Granite", "Helix")
CHIPS = ("Topaz", "Quartz", "Onyx", "Jasper", "Beryl", "Agate")
UNITS = {
    "llm": ("token", "tok"),
    "diffusion": ("image", "img"),
    "dlrm": ("sample", "samples"),
    "resnet50": ("image", "img"),
}

REASONS: dict[Grade, tuple[str, ...]] = {"official": (), "ranked": ("3 of 5 runs",), "indicative": ("1 of 3 runs",)}


def made(number: int, seed: int = 1) -> Entry:
    """The entry of this number; the same for the same number and seed."""
    rng = random.Random(f"{seed}/{number}")
    maker, chip = rng.choice(MAKERS), rng.choice(CHIPS)
    declaration = _declaration(rng, maker, f"{maker} {chip} {number}")
    cpu = Device(id="cpu:0", kind="cpu", name=f"{maker} Quartz", memory_pool="host", memory_bytes=1 << 36)
    gpu = Device(id="gpu:0", kind="gpu", name=f"{maker} {chip}", memory_pool="gpu:0", memory_bytes=1 << 35)
    whole = system().model_copy(update={"cpu_model": cpu.name})
    devices = (cpu, gpu) if rng.random() < 0.7 else (cpu,)
    metered = rng.random() < 0.8
    scored = _scored(rng, metered)
    mixes_per_hour, mixes_per_kwh, watts = (scored[name] for name in ("mixes_per_hour", "mixes_per_kwh", "watts"))
    began = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(days=rng.randrange(690))
    count = {"official": 5, "ranked": 3}.get(scored["grade"], 1)
    runs = tuple(
        MixedRun(
            result=1,
            phase=f"mix{run}",
            seconds=240.0,
            mixes_per_hour=mixes_per_hour,
            mixes_per_kwh=mixes_per_kwh,
            watts=watts,
        )
        for run in range(1, count + 1)
    )
    return Entry(
        **scored,
        declaration=declaration,
        reasons={"grade": REASONS[scored["grade"]]},
        unmeasured="" if metered else "no meter was read",
        machine=DisclosedMachine(
            hosts=(Hosts(names=("host1",), system=whole),),
            whole=whole,
            devices=devices,
            environments={
                "torch": Environment(
                    origin="built in",
                    spec="a:B",
                    python="CPython 3.12.3",
                    mixmark="0.1.0",
                    packages={"torch": "2.9.0", "numpy": "2.1.0"},
                )
            },
        ),
        suites=dict.fromkeys(UNITS, "1"),
        began_utc=began.isoformat(),
        ended_utc=began.isoformat(),
        commands=(("run", "--preset", "official"),),
        started=3,
        begun=9,
        resumed=0,
        verdict="solid",
        runs=runs,
        solos=tuple(_solo_measurement(rng, suite, device.id) for suite in UNITS for device in devices),
        findings=(found("canary_stable", fastest_ms=10.0, slowest_ms=10.3, drift=0.03, limit=0.02),),
        signed=Signed(state="none"),
    )


def _declaration(rng: random.Random, maker: str, system: str) -> Declaration:
    price = Price(
        amount=f"{rng.randrange(900, 90_000)}.00",
        currency="EUR",
        date=datetime.date(2026, 1, 2),
        source="https://example.org/shop",
    )
    return Declaration(
        organisation=maker,
        system=system,
        availability=rng.choice(("available", "available", "preview")),
        form_factor=rng.choice(("desktop", "rack server", "laptop")),
        origin=f"{maker}, Germany",
        price=price if rng.random() < 0.7 else None,
        provisioned_watts=rng.choice((None, 450, 1200)),
    )


def _scored(rng: random.Random, metered: bool) -> dict[str, Any]:
    """The classes and figures of an entry."""
    grades: tuple[Grade, ...] = ("official", "official", "ranked", "indicative")
    kinds: tuple[Boundary, ...] = ("wall", "node", "devices")
    grade, boundary = rng.choice(grades), rng.choice(kinds)
    speed, watts = rng.lognormvariate(-1, 1.2), rng.uniform(60, 900)

    def around(value: float) -> Estimate:
        half = rng.uniform(0.003, 0.02 if grade == "official" else 0.06)
        return Estimate(value) if grade == "indicative" else Estimate(value, value * (1 - half), value * (1 + half))

    return {
        "mixmark": "0.1.0",
        "mix": rng.choice(("edge-1", "edge-1", "edge-1", "server-1")),
        "tier": "edge",
        "division": rng.choice(("closed", "closed", "open")),
        "tuning": rng.choice(("base", "peak")),
        "grade": grade,
        "ranked": grade != "indicative",
        "weight_class": rng.choice((16, 16, 8, 4)),
        "boundary": boundary if metered else None,
        "mixes_per_hour": around(speed),
        "mixes_per_kwh": around(1000 * speed / watts) if metered else None,
        "watts": watts if metered else None,
        "results": (f"{rng.getrandbits(256):064x}",),
    }


def _solo_measurement(rng: random.Random, suite: str, device: str) -> Solo:
    unit, short = UNITS[suite]
    speed = rng.lognormvariate(3, 1) * (1 if device == "cpu:0" else 12)
    joules = rng.choice((None, 20 / speed))
    return solo(
        suite,
        suite=suite,
        device=device,
        precision="bf16" if device != "cpu:0" else "fp32",
        batch=32,
        unit=unit,
        names=UnitNames(short=short, work=f"{unit}s"),
        units_per_s=Estimate(speed, speed * 0.99, speed * 1.01),
        energy=None if joules is None else Energy("wall", 20.0, joules, 20.0, (), None, ()),
    )
