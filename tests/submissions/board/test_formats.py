from __future__ import annotations

import hashlib

import pytest

from mixmark.harness.contracts.schema import Device
from mixmark.submissions.board import formats, row
from mixmark.submissions.board.rank import boards
from tests.submissions.board.made import SITE, crowd, hostile
from tests.submissions.entries import made

CROWDS = {"none": [], "one": crowd(1), "many": crowd(80), "hostile": [hostile(number) for number in range(4)]}


def test_silicon_counts_once_however_it_is_grouped_and_sliced() -> None:
    def gpu(name: str, *parts: str, called: str = "Acme Topaz") -> Device:
        return Device(id=f"gpu:{name}", kind="gpu", name=called, memory_pool=name, parts=parts)

    def named(*devices: Device) -> list[str]:
        entry = CROWDS["one"][0]
        return row.devices(entry.model_copy(update={"machine": entry.machine.model_copy(update={"devices": devices})}))

    pair = gpu("pair", "gpu:a", "gpu:b", called="Acme Topaz pair")
    assert named(gpu("a"), gpu("b"), pair) == named(pair, gpu("b"), gpu("a")) == ["2 × Acme Topaz"]
    assert named(gpu("pair", "gpu:a", "gpu:b")) == ["2 × Acme Topaz"]
    assert named(gpu("a"), gpu("a1", "gpu:a/1-of-2"), gpu("a2", "gpu:a/2-of-2")) == ["Acme Topaz"]


def test_no_control_character_is_written() -> None:
    entries = CROWDS["hostile"]
    text = formats.as_json(SITE, boards(entries), entries)
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_citation_names_the_score_its_conditions_and_where_it_stands() -> None:
    site = SITE.__class__(**{**vars(SITE), "url": "https://example.org/board/"})
    entry = next(entry for entry in CROWDS["many"] if entry.mixes_per_kwh and entry.ranked)
    declared = entry.declaration.model_copy(update={"organisation": "Acme & Söhne", "system": "One_2"})
    entry = entry.model_copy(update={"declaration": declared})
    address = f"https://example.org/board/entries/acme-sohne/one-2/{entry.mix}-{entry.weight_class}-bit"
    address += f"-{hashlib.sha256(entry.results[0].encode()).hexdigest()[:12]}/index.html"
    words = formats.citation(entry, site)
    again = declared.model_copy(update={"notes": "A correction."})
    assert formats.citation(entry.model_copy(update={"declaration": again}), site) == words
    assert address not in formats.citation(entry.model_copy(update={"results": ("0" * 64,)}), site)
    assert ", disturbed. " in formats.citation(entry.model_copy(update={"verdict": "disturbed"}), site)
    assert "disturbed" not in words and f"Mixmark {entry.mixmark}" in words
    assert words.startswith("Acme & Söhne: One_2. ") and words.endswith(f". {address}")
    assert formats.headline(entry) in words and row.measured(entry) in words


@pytest.mark.parametrize(
    ("model", "flags", "shown"),
    [
        ("AMD EPYC", ("avx", "avx2", "fma"), "AMD EPYC (model not disclosed, AVX2), "),
        (
            "Intel(R) Xeon(R) Processor",
            ("amx_tile", "avx2", "avx512f"),
            "Intel(R) Xeon(R) Processor (model not disclosed, AMX), ",
        ),
        ("AMD EPYC 7B13", ("avx2",), "AMD EPYC 7B13, "),
        ("Acme Quartz", (), "Acme Quartz, "),
    ],
)
def test_a_processor_without_a_model_is_named_with_what_it_can_do(
    model: str, flags: tuple[str, ...], shown: str
) -> None:
    entry = made(1)
    whole = entry.machine.whole.model_copy(update={"cpu_model": model, "cpu_flags": flags})
    machine = entry.machine.model_copy(update={"whole": whole})
    assert row.hardware(entry.model_copy(update={"machine": machine})).startswith(shown)
