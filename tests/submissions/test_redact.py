"""The texts that a redaction removes and leaves, and the result afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Device, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from mixmark.submissions import bundle
from mixmark.submissions.redact import OWN, Redactor, private, private_ids, texts, words_of
from tests.fakes.folders import Maker, write
from tests.golden.sample import altered, result
from tests.submissions.made import DECLARED

UUID = "5d1cae40-0000-4000-8000-0123456789ab"


def cleaned(text: str, *words: str) -> str:
    return Redactor([(word, "host name") for word in words]).text(text)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("read /home/jane/run.csv", "read path-1"),
        ("read /home/jane/run.csv.", "read path-1."),
        ("a=/data/x b=/data/x c=/srv/y", "a=path-1 b=path-1 c=path-2"),
        ("~/runs and ~jane/runs", "path-1 and path-2"),
        ("file:///srv/x", "file://path-1"),
        (r"C:\Users\jane\x", "path-1"),
        ("/dev/serial/by-id/usb-Prolific_0815-if00", "path-1"),
        ("ask jane.doe@example.org", "ask email-address-1"),
        (f"GPU-{UUID}", "GPU-uuid-1"),
        ("at 00:1a:2B:3c:4d:5e", "at mac-address-1"),
        ("10.0.0.7 and 10.0.0.7 and 192.168.1.1", "ip-address-1 and ip-address-1 and ip-address-2"),
        ("fe80::1ff:fe23:4567:890a", "ip-address-1"),
        ("Serial number: ABC-1234567", "serial-number-1"),
        ("unit SN0324517083", "unit serial-number-1"),
        ("shellyplus1pm-d48afc7a1b2c", "shellyplus1pm-mac-address-1"),
        ("d48a.fc7a.1b2c", "mac-address-1"),
        ("0123456789abcdef0123456789abcdef", "uuid-1"),
        ("jane@lab-box", "email-address-1"),
        (r"on \\nas\share\x", "on path-1"),
        ("/opt/acme/bin /usr/local/jane", "path-1 path-2"),
        ("lab-7.example.org on LAB-7", "host-name-1.example.org on host-name-2"),
    ],
)
def test_what_is_private_is_replaced_once(text: str, clean: str) -> None:
    assert cleaned(text, "lab-7") == clean == cleaned(clean)
    assert not list(private({"a": [clean]}))


@pytest.mark.parametrize(
    "text",
    [
        "3.96 tok/s, 12 mix/kWh",
        "/sys/class/powercap/intel-rapl:0",
        "there is no /dev/ipmi0: sudo modprobe ipmi_si",
        "https://docs.kernel.org/power/powercap.html",
        "2026-11-22T04:13:13+00:00",
        "127.0.0.1 and ::1",
        "torch 2.13.0+cpu",
        "6.18.44-fc-v669 x86_64",
        "nvml/0/energy",
        "0x1",
        "/usr/lib/python3 /opt/rocm/share/amd_smi /usr/local/cuda/lib64",
        "2026.4.1-22982-e213a147257-releases/2026/4",
        "100000000000 bytes of 9223372036854771712, decadefacade",
        "SNORT and SNAPSHOT",
        "lab-70 and collab-7",
        "root on pc in localhost",
        "arch/x86/events/rapl.c",
        "n(1 − ρ)/(1 + ρ)",
        "a/b/c, and/or",
        "ed4e61002618e7bd344e811185bb513d9ffc94b41bbcce742f891ad101405fc0",
    ],
)
def test_what_is_public_stays(text: str) -> None:
    assert cleaned(text, "lab-7", "root", "pc", "localhost") == text


def test_a_version_of_four_parts_is_no_address() -> None:
    content = {"packages": {"driver": "32.0.15.60"}, "reason": "no output from 32.0.15.60"}
    assert Redactor().content(content) == {
        "packages": {"driver": "32.0.15.60"},
        "reason": "no output from ip-address-1",
    }


@pytest.mark.parametrize(
    "text",
    [
        "serial" + " " * 300_000,
        "serial-" * 50_000,
        "a" * 300_000,
        "~a" * 100_000,
        "/a" * 100_000,
        ":0" * 100_000,
        "@." * 99_999,
    ],
    ids=["spaces", "serials", "letters", "tildes", "paths", "colons", "signs"],
)
def test_a_long_text_takes_a_time_in_proportion_to_its_length(text: str) -> None:
    """A pattern that backtracks would take minutes for each of these."""
    assert list(private([text])) is not None


def test_removed_texts_are_listed_with_their_count() -> None:
    redactor = Redactor([("lab", "host name")])
    redactor.content({"a": "lab", "b": ["lab", "/home/jane/x"]})
    assert {(found.what, found.old, found.new, found.times) for found in redactor.removed} == {
        ("host name", "lab", "host-name-1", 2),
        ("path", "/home/jane/x", "path-1", 1),
    }


def renamed(result: Result, names: Mapping[str, str]) -> Result:
    """The result with other texts in the places of old ones."""

    def new(text: str) -> str:
        return reduce(lambda text, name: text.replace(*name), names.items(), text)

    content = json.loads(new(json.dumps(result.model_dump(mode="json"))))
    for record, fields in zip(result.records, content["records"], strict=True):
        fields["completions"] = record.completions
    for metering, fields in zip(result.meterings, content["meterings"], strict=True):
        fields["samples"] = {new(id): samples for id, samples in metering.samples.items()}
    return Result.model_validate(content)


def with_uuid(result: Result) -> Result:
    """The result of a machine whose GPU is named by its UUID, as NVIDIA's are."""
    gpu = {"gpu:GPU-0": f"gpu:GPU-{UUID}", "gpu-gpu-0": f"gpu-gpu-{UUID}", "nvml/0": f"nvml/GPU-{UUID}/energy"}
    facts = {"device": f"on lab-7: GPU-{UUID}", "cache": "/home/jane/.cache"}
    return altered(renamed(result, gpu), lambda _: True, facts=facts)


def test_the_uuid_of_a_gpu_becomes_a_number_in_its_groups_and_slices() -> None:
    def gpu(id: str, *parts: str) -> Device:
        return Device(id=f"gpu:{id}", kind="gpu", memory_pool=f"gpu:{id}", parts=parts)

    slice = gpu(f"MIG-{UUID[:-1]}f", f"gpu:GPU-{UUID}/2-of-7")
    devices = (gpu(f"GPU-{UUID}"), slice, gpu("pair", f"gpu:GPU-{UUID}", "gpu:1"))
    clean = Redactor().result(result().model_copy(update={"devices": devices}))
    assert [device.id for device in clean.devices] == ["gpu:0", "gpu:2", "gpu:pair"]
    assert [device.parts for device in clean.devices] == [(), ("gpu:0/2-of-7",), ("gpu:0", "gpu:1")]


def test_the_uuid_of_a_gpu_becomes_a_number_everywhere(tmp_path: Path) -> None:
    result = with_uuid(Maker().result())
    write(tmp_path / "run", result)
    made = bundle.bundle([tmp_path / "run"], DECLARED, tmp_path / "entries", [("lab-7", "host name")])
    assert made.verdict.entry is not None, made.verdict.problems
    clean = store.open(made.folder / "results/1")
    assert [device.id for device in clean.devices] == ["cpu:0", "gpu:0"]
    assert "nvml/0/energy" in clean.meterings[0].samples
    assert any(record.key.endswith(".gpu-0.bf16") for record in clean.records)
    everything = b"".join(path.read_bytes() for path in made.folder.rglob("*") if path.is_file())
    for private_text in (UUID, UUID[:8], "lab-7", "jane", ".cache"):
        assert private_text.encode() not in everything, private_text
        assert private_text.encode("utf-32-le") not in everything, private_text  # as numpy writes names
    before, after = judge(result).score, judge(clean).score
    assert before is not None and after is not None
    assert (before.mixes_per_hour, before.mixes_per_kwh) == (after.mixes_per_hour, after.mixes_per_kwh)
    assert {removed.what for removed in made.removed} == {"device", "host name", "path"}


def test_a_result_that_was_not_redacted_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run", with_uuid(Maker().result()))
    monkeypatch.setattr("mixmark.submissions.redact.Redactor.result", lambda redactor, result: result)
    made = bundle.bundle([tmp_path / "run"], DECLARED, tmp_path / "entries")
    problems = made.verdict.problems
    assert made.verdict.entry is None and {problem.code for problem in problems} == {"E-PRIVATE"}
    assert {problem.message.partition(" that")[0] for problem in problems} >= {"path", "UUID"}
    assert not made.folder.exists()


def test_a_host_that_is_called_like_a_part_of_the_result_stays(tmp_path: Path) -> None:
    write(tmp_path / "run", Maker().result())
    made = bundle.bundle([tmp_path / "run"], DECLARED, tmp_path / "entries", [("dlrm", "host name"), ("smoke", "word")])
    assert made.verdict.entry is not None
    assert made.kept == ("dlrm", "smoke")
    assert {"dlrm", "resnet50", "smoke", "torch", "fp32", "cpu"} <= words_of(store.open(made.folder / "results/1"))


def test_a_redaction_that_makes_a_result_invalid_is_an_error() -> None:
    with pytest.raises(ResultError, match="is not valid without"):
        Redactor([("fp32", "host name")]).result(Maker().result())


def test_the_id_of_an_energy_domain_becomes_a_number_everywhere() -> None:
    text = json.dumps(Maker().result().model_dump(mode="json"))
    assert "nvml/0" in text
    before = renamed(Maker().result(), {"nvml/0": "shelly/plus1pm-d48afc7a1b2c"})
    assert [kind for kind, _ in private_ids(before)] == ["energy domain"]
    redactor = Redactor()
    clean = redactor.result(before)
    assert "shelly/0" in {domain.id for domain in clean.domains} and "shelly/0" in clean.meterings[0].samples
    assert not list(private_ids(clean)) and "d48afc7a1b2c" not in json.dumps(clean.model_dump(mode="json"))
    [removed] = redactor.removed
    assert (removed.what, removed.old, removed.new) == ("energy domain", "shelly/plus1pm-d48afc7a1b2c", "shelly/0")
    assert redactor.result(clean) == clean or redactor.result(clean).domains == clean.domains, "once is enough"


def test_a_text_that_mixmark_did_not_write_is_shown_whatever_it_holds() -> None:
    """Names that no pattern knows: of a host in a message, of a user in a fact."""
    result = Maker().result()
    environment = result.environments["torch"].model_copy(update={"vendor": {"driver": "built by jane"}})
    facts = {"engine": "runs/jane/engine.plan of build.lab.example.org"}
    records = tuple(record.model_copy(update={"facts": facts}) for record in result.records)
    told = result.model_copy(update={"records": records, "environments": {"torch": environment}})
    redactor = Redactor()
    redactor.result(told)
    redactor.leave(DECLARED)
    left = {name: list(found) for name, found in redactor.left.items()}
    assert left["facts"] == ["engine runs/jane/engine.plan of build.lab.example.org"]
    assert left["vendor"] == ["driver built by jane"] and left["notes"] == [DECLARED.notes]
    assert left["environments"] == ["torch"]
    assert not {"created_utc", "key", "code", "scenario", "sha256"} & left.keys()


def test_a_field_that_is_new_is_shown() -> None:
    class Newer(Device):
        made_by: str

    device = Newer(id="gpu:0", kind="gpu", memory_pool="gpu:0", made_by="jane")
    assert ("made_by", "jane") in list(texts(device)) and ("kind", "gpu") in list(texts(device))
    assert all(each in Result.model_fields for each in OWN["Result"])
