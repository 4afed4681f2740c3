"""Made-up entries in any number: `made(number)` returns an Entry as a check would; nothing is read or written."""

from __future__ import annotations

import datetime
import random

from mixmark.harness.contracts.schema import Boundary, Device, Finding, Precision
from mixmark.submissions.entry import (
    RULES_VERSION,
    Aspect,
    Claim,
    Declaration,
    DisclosedMachine,
    Entry,
    Estimate,
    Grade,
    Level,
    MixedRun,
    PriceItem,
    PriceTotal,
    Signed,
    Software,
    SoloMeasurement,
)

GOAL_MS = 20.0  # for all but reading and judging the samples
MAKERS = ("Acme", "Borealis", "Cobalt", "Dynamo", "Ember", "Fathom", "Granite", "Helix")
CHIPS = ("Topaz", "Quartz", "Onyx", "Jasper", "Beryl", "Agate")
UNITS = {
    "llm": ("token", "tok"),
    "diffusion": ("image", "img"),
    "dlrm": ("sample", "samples"),
    "resnet50": ("image", "img"),
}


def made(number: int, seed: int = 1) -> Entry:
    """The entry of this number; the same for the same number and seed."""
    rng = random.Random(f"{seed}/{number}")
    maker, chip = rng.choice(MAKERS), rng.choice(CHIPS)
    declaration = _declaration(rng, maker, f"{maker} {chip} {number}")
    cpu = Device(id="cpu:0", kind="cpu", name=f"{maker} Quartz", memory_pool="host", memory_bytes=1 << 36)
    gpu = Device(id="gpu:0", kind="gpu", name=f"{maker} {chip}", memory_pool="gpu:0", memory_bytes=1 << 35)
    devices = (cpu, gpu) if rng.random() < 0.7 else (cpu,)
    metered = rng.random() < 0.8
    claim = _claim(rng, declaration, metered)
    began = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(days=rng.randrange(690))
    runs = tuple(
        MixedRun(
            result=1,
            phase=f"mix{run}",
            seconds=240.0,
            mixes_per_s=claim.mixes_per_s,
            mixes_per_kj=claim.mixes_per_kj,
            watts=claim.watts,
        )
        for run in range(1, claim.runs + 1)
    )
    organisation, system = declaration.folders
    level = claim.level or 0
    return Entry(
        organisation=organisation,
        system=system,
        mix=claim.mix,
        declaration=declaration,
        claim=claim,
        reasons={"grade": ("3 of 5 runs",) if claim.grade == "provisional" else ()},
        aspects=(
            Aspect(name="granularity", level=3, reason="energy counters over the whole window"),
            Aspect(name="fraction", level=3, reason="every device is metered"),
            Aspect(name="subsystems", level=level, reason=f"the boundary is {claim.boundary}"),
            Aspect(name="point", level=level, reason=f"the boundary is {claim.boundary}"),
        )
        if metered
        else (),
        unmeasured="" if metered else "no meter was read",
        machine=DisclosedMachine(
            cpu_model=cpu.name,
            cpu_cores=16,
            cpu_threads=32,
            memory_bytes=1 << 36,
            operating_system="Example Linux 12",
            kernel="6.12.0 x86_64",
            virtualization=None,
            devices=devices,
            software=(
                Software(
                    adapter="torch",
                    origin="built in",
                    python="CPython 3.12.3",
                    packages={"torch": "2.9.0", "numpy": "2.1.0"},
                    vendor={},
                ),
            ),
        ),
        suites=dict.fromkeys(UNITS, "1"),
        began_utc=began.isoformat(),
        ended_utc=began.isoformat(),
        commands=(("run", "--preset", "official"),),
        runs=runs,
        solo_measurements=tuple(_solo_measurement(rng, suite, device.id) for suite in UNITS for device in devices),
        findings=(
            Finding(
                rule="canary_stable", severity="warning", about="run", message="the time of a fixed loop changed by 3 %"
            ),
        ),
        signed=Signed(state="none"),
        kits={},
    )


def _declaration(rng: random.Random, maker: str, system: str) -> Declaration:
    item = PriceItem(
        what=f"{system}, complete",
        quantity=1,
        unit_price=f"{rng.randrange(900, 90_000)}.00",
        currency="EUR",
        date=datetime.date(2026, 1, 2),
        source="https://example.org/shop",
        locale="de-DE",
    )
    return Declaration(
        organisation=maker,
        system=system,
        availability=rng.choice(("available", "available", "preview")),
        available_on=datetime.date(2026, 1, 2),
        cooling="air",
        form_factor=rng.choice(("desktop", "rack server", "laptop")),
        origin=f"{maker}, Germany",
        price=(item,) if rng.random() < 0.7 else (),
        provisioned_watts=rng.choice((None, 450, 1200)),
    )


def _claim(rng: random.Random, declaration: Declaration, metered: bool) -> Claim:
    grades: tuple[Grade, ...] = ("official", "official", "provisional", "indicative")
    kinds: tuple[tuple[Boundary, Level], ...] = (("wall", 3), ("node", 0), ("devices", 0))
    grade, (boundary, level) = rng.choice(grades), rng.choice(kinds)
    speed, watts = rng.lognormvariate(-1, 1.2), rng.uniform(60, 900)

    def around(value: float) -> Estimate:
        half = rng.uniform(0.003, 0.02 if grade == "official" else 0.06)
        return (
            Estimate(value=value)
            if grade == "indicative"
            else Estimate(value=value, low=value * (1 - half), high=value * (1 + half))
        )

    return Claim(
        rules_version=RULES_VERSION,
        mixmark="0.1.0",
        mix=rng.choice(("edge-1", "edge-1", "edge-1", "server-1")),
        tier="edge",
        division=rng.choice(("closed", "closed", "open")),
        tuning=rng.choice(("base", "peak")),
        grade=grade,
        ranked=grade != "indicative",
        weight_class=rng.choice((16, 16, 8, 4)),
        boundary=boundary if metered else None,
        level=level if metered else None,
        runs={"official": 5, "provisional": 3}.get(grade, 1),
        mixes_per_s=around(speed),
        mixes_per_kj=around(1000 * speed / watts) if metered else None,
        watts=watts if metered else None,
        price=PriceTotal(amount=declaration.price[0].unit_price, currency="EUR") if declaration.price else None,
        results=(f"{rng.getrandbits(256):064x}",),
    )


def _solo_measurement(rng: random.Random, suite: str, device: str) -> SoloMeasurement:
    unit, short = UNITS[suite]
    speed = rng.lognormvariate(3, 1) * (1 if device == "cpu:0" else 12)
    precision: Precision = "bf16" if device != "cpu:0" else "fp32"
    return SoloMeasurement(
        suite=suite,
        suite_version="1",
        unit=unit,
        short_unit=short,
        device=device,
        adapter="torch",
        precision=precision,
        scenario="offline",
        batch=32,
        units_per_s=Estimate(value=speed, low=speed * 0.99, high=speed * 1.01),
        joules_per_unit=rng.choice((None, 20 / speed)),
    )
