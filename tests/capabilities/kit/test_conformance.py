"""The conformance kit: an honest adapter passes every check, and each check catches one that is broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from mixmark import Array, Feed, Graph, Session, Spec, Use
from mixmark.harness.capabilities.kit import adapter, check_adapter, check_meter, meter, suite
from mixmark.harness.capabilities.kit.adapter import CHECKS
from mixmark.harness.capabilities.kit.adapter_trials import AdapterTrials
from mixmark.harness.capabilities.kit.report import CheckFailed, FirstContact, NotChecked, Report, apply
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.schema import Result
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.devices import Found
from mixmark.harness.measure.audit import CPU
from mixmark.harness.plugins import registry
from mixmark.harness.worker.process import orphans
from tests.capabilities.kit import conformance, gauge
from tests.capabilities.kit.replay import measured, recorded, replayed
from tests.docs.test_pages import anchors
from tests.fakes.null import Null
from tests.fakes.reference import NUMPY

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ACME = f"{HERE / 'conformance.py'}:Acme"
PAGE = (ROOT / "docs/capabilities/kit/start.md").read_text("utf-8")
TYPED = re.findall(r"<!-- kit -->\n```sh\nmixmark (.*)\n```", PAGE)[0].split()
"""The command of the page."""
GAUGE = f"{HERE / 'gauge.py'}:Gauge"
CAUGHT = {
    "discovery_is_quick": ("slow", r"it took \d+ s, and may take 0.2 s"),
    "discovery_is_repeatable": ("forgets", "npu:acme0: another name the second time"),
    "devices_are_told_apart": ("twice", "npu:acme1: the adapter lists it twice"),
    "options_are_refused": ("lax", "it took an unknown option"),
    "claims_run": ("raises", "sum on npu:acme0 by acme in bf16: raised: RuntimeError: acme: no kernel"),
    "yields_fit_the_table": (
        "wide",
        "in fp16: wrong output: a runner yields arrays of float32, int32 or int64.* got float64",
    ),
    "outputs_pass_their_gates": ("wrong", "in int8: wrong outputs: .*; difference .*, at most 0.5 is allowed"),
    "placement_is_truthful": ("elsewhere", "not all of it ran on npu:acme0: 2 of 3 nodes on cpu:0"),
    "feeds_can_be_broken_off": ("clings", "closing a feed after its first yield took"),
    "memory_returns": ("leaks", r"npu:acme0: \+\d\d.\d MiB a session, with weights of 0.0 MiB"),
    "idle_burns_nothing": ("spins", r"npu:acme0: it used \d.\d\d CPUs while it ran no feed"),
    "a_killed_worker_leaves_nothing": ("spins", "npu:acme0: python.* lived on when the worker was killed"),
    "concurrency_is_honoured": ("mixes up", r"in fp32: wrong outputs: .*; difference .*, at most 0.5 is allowed"),
    "devices_work_at_once": ("greedy", "raised: RuntimeError: acme: npu:acme. is in use"),
}
"""The fault that each check catches, and its message."""


class Unredacted:
    """The redactor where no other is installed."""

    def result(self, result: Result) -> Result:
        return result

    def content(self, content: object) -> object:
        return content


def private(content: object) -> bool:
    """Whether a redaction would change a recording."""
    redactor = registry.find("services").get("redactor")
    return redactor is not None and redactor.load()().content(content) != content


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One tiny suite, and a reference without torch."""
    monkeypatch.setitem(registry.BUILT_IN, "suites", {"sum": "tests.fakes.null:Sum"})
    monkeypatch.setitem(registry.BUILT_IN, "adapters", {**registry.BUILT_IN["adapters"], **NUMPY})
    services = {"redactor": f"{__name__}:Unredacted", **registry.BUILT_IN["services"]}
    monkeypatch.setitem(registry.BUILT_IN, "services", services)
    monkeypatch.setattr(orphans, "GRACE_S", 0.1)
    monkeypatch.setenv("MIXMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.mark.slow
def test_an_honest_adapter_passes_every_check_and_its_first_contact_is_recorded(toys: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as server:  # it ran before and lives on, which is no fault
        Path("mixmark.toml").write_text(f'[adapter.acme]\nserver = "{server.pid}"\n')
        words = [ACME if word == "acme" else word for word in TYPED]
        done = CliRunner().invoke(main, [*words, "--json", "--record", "contact.json"])
        server.kill()
    printed = json.loads(done.stdout)
    assert {each["check"]: each["state"] for each in printed["verdicts"]} == {
        each.__name__: "passed" for each in CHECKS
    }, done.output
    assert (done.exit_code, printed.pop("passed")) == (0, True)
    report = Report.model_validate_json((toys / "acme.json").read_text())
    assert report.model_dump(mode="json") == printed
    assert (report.name, report.source, len(report.sha256)) == ("acme", "conformance.py", 64)
    assert [*done.stderr.split()][1 : 2 * len(CHECKS) : 2] == [each.__name__ for each in CHECKS], "without a terminal"
    assert "The recording is in contact.json" in done.stderr
    content = json.loads((toys / "contact.json").read_text())
    contact = FirstContact.model_validate(content)
    assert replayed(contact) == recorded(contact) and len(replayed(contact)) == 6
    result = measured(contact)
    assert result and [device.id for device in result.devices] == ["npu:acme0", "npu:acme1"]
    assert not private(content), "the recording names no file and no user"
    content["result"]["records"][0]["facts"]["elsewhere"] = "2 of 3 nodes on cpu:0"
    assert replayed(FirstContact.model_validate(content))["placement_is_truthful"][0] == "failed"


@pytest.mark.slow
def test_each_check_catches_its_fault(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "DISCOVERS_WITHIN_S", 0.2)
    monkeypatch.setattr(adapter, "CLOSES_WITHIN_S", 0.1)
    options = {"broken": ",".join(conformance.FAULTS), "folder": str(toys)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    Path("mixmark.toml").write_text("\n".join(["[adapter.acme]", *lines]))
    report = check_adapter(ACME)
    assert not report.passed
    assert {fault for fault, _ in CAUGHT.values()} == set(conformance.FAULTS)
    results = [result for result in report.verdicts if result.check != "sessions_follow_each_other"]
    for result, (check, (_, message)) in zip(results, CAUGHT.items(), strict=True):
        assert (result.check, result.state) == (check, "failed"), str(report)
        assert re.search(message, result.message), str(result)
        assert result.docs == f"docs/capabilities/kit/conformance.md#{check}"


@pytest.mark.slow
def test_a_recording_that_cannot_be_written_loses_no_report(
    toys: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "CHECKS", (adapter.devices_are_told_apart,))
    done = CliRunner().invoke(main, ["check", "adapter", ACME, "--device", "npu:acme0", "--record", "/dev/full"])
    assert done.exit_code == 2 and "1 passed" in done.output
    assert "cannot write /dev/full: No space left on device" in done.output and "Traceback" not in done.output


@pytest.mark.slow
def test_a_device_that_is_not_there_is_refused_with_those_that_are(toys: Path, inline: None) -> None:
    done = CliRunner().invoke(main, ["check", "adapter", ACME, "--device", "npu:none"])
    assert done.exit_code == 2 and "there is no device 'npu:none'" in done.output
    assert "known: npu:acme0, npu:acme1" in done.output


@pytest.mark.parametrize("path", sorted((HERE / "first_contacts").glob("*.json")), ids=lambda path: path.stem)
def test_each_recorded_first_contact_comes_to_the_same_results(path: Path) -> None:
    contact = FirstContact.model_validate_json(path.read_bytes())
    assert replayed(contact) == recorded(contact)
    assert not private(json.loads(path.read_text("utf-8")))


@pytest.mark.slow
def test_checks_of_sessions_in_a_row_are_not_checked_if_the_sessions_fail(toys: Path, inline: None) -> None:
    chosen = Config(adapters={"acme": AdapterConfig(options={"broken": "once"})})
    acme = registry.find("adapters", [ACME])["acme"]
    trials = AdapterTrials(acme, chosen, setup.load_suites(chosen, "smoke"), toys / "kit", 60)
    failed = apply(adapter.sessions_follow_each_other, trials)
    assert failed.state == "failed" and failed.message.startswith("raised: RuntimeError: acme: the driver is gone")
    assert {apply(each, trials).state for each in (adapter.memory_returns, adapter.idle_burns_nothing)} == {
        "not checked"
    }


CAUGHT_IN_METERS = {
    "domains_are_quick": ("slow", r"it took \d+ s, and may take 0.2 s"),
    "domains_are_repeatable": ("forgets", "the second time it reported other domains"),
    "absent_sources_say_why": ("denied", "Permission denied.*: it lacks the command that makes it readable"),
    "covers_are_known": ("strange", "gauge/strange covers fpga, which is no device"),
    "parents_exist": ("orphan", "there is no gauge/none"),
    "nothing_overlaps": ("again", "gauge/cpu and gauge/again cover the same"),
    "reads_are_quick": ("lost", "gauge/lost: OSError: the gauge was pulled out"),
    "counters_rise": ("falls", "gauge/falls: the counter jumped back"),
    "power_is_plausible": ("flat", r"gauge/(cpu|again): [\d.]+ W at rest, [\d.]+ W under load: it follows no load"),
}


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No adapter is asked for its devices, readings take a moment, and the load is a file that the gauge sees: the CPUs
    belong to the other tests as well."""

    @contextmanager
    def load(settle_s: float) -> Iterator[None]:
        Path("load").touch()
        yield
        Path("load").unlink()

    monkeypatch.setattr(meter, "busy_cpus", load)
    monkeypatch.setattr(meter, "BUSY_PERCENT", 101)
    monkeypatch.setattr(setup, "find_devices", lambda adapters, config: Found((), ()))
    monkeypatch.setattr(meter, "READ_S", 0.4)
    monkeypatch.setenv("MIXMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.chdir(tmp_path)


def test_power_at_rest_is_not_checked_on_a_machine_that_is_not_at_rest() -> None:
    domain = Mock(id="rapl/0", covers=("cpu:0",))
    read = {domain.id: Mock(watts=23.7)}
    busy = Mock(domains=[domain], at_rest=read, under_load=read, rest_percent=60.0)
    with pytest.raises(NotChecked, match="other programs kept the CPUs 60 % busy at rest"):
        meter.power_is_plausible(busy)


@pytest.mark.slow
def test_an_honest_meter_passes_every_check(gauges: None) -> None:
    done = CliRunner().invoke(main, ["check", "meter", GAUGE])
    assert (done.exit_code, "meter gauge: 9 passed, 0 failed, 0 not checked" in done.output) == (0, True), done.output


@pytest.mark.slow
def test_each_check_of_a_meter_catches_its_fault(gauges: None, inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "DOMAINS_WITHIN_S", 0.2)
    Path("mixmark.toml").write_text(f'[meter.gauge]\nbroken = "{",".join(gauge.FAULTS)}"')
    report = check_meter(GAUGE)
    assert {fault for fault, _ in CAUGHT_IN_METERS.values()} == set(gauge.FAULTS)
    for result, (check, (_, message)) in zip(report.verdicts, CAUGHT_IN_METERS.items(), strict=True):
        assert (result.check, result.state) == (check, "failed"), str(report)
        assert re.search(message, result.message), str(result)


def test_a_meter_that_raises_is_no_source_that_is_absent(gauges: None, inline: None) -> None:
    found = registry.find("meters", [f"{ROOT / 'tests/fakes/meters.py'}:Joules"])["joules"]
    options = Config(meters={"joules": {"mode": "broken driver"}})
    result = apply(meter.absent_sources_say_why, meter.MeterTrials(found, options, ()))
    assert (result.state, result.message.startswith("it raised RuntimeError: libjoules.so: cannot open")) == (
        "failed",
        True,
    )


FAULTY = "tests.capabilities.kit.faulty_suite:Faulty"
CAUGHT_IN_SUITES = {
    "tiers_and_options_are_refused": ("lax", "it took an unknown tier: raise Unsupported"),
    "feeds_are_repeatable": ("forgets", "the same seed and nonce gave another feed"),
    "feeds_are_independent": ("repeats", "two seeds or nonces gave the same feed"),
    "units_are_counted": ("short", "a feed yielded 8 rows, and `units` says 7"),
    "the_reference_has_no_error": ("off", "its value is 1, and fp32 may have 1e-06"),
    "wrong_outputs_are_refused": ("credulous", "`quality` took a row less, float64, NaN"),
    "gates_allow_honest_rounding": ("tight", "bf16: .*, above 1e-09; fp16: .*; fp8: .*; int8: .*; int4: .*"),
    "gates_catch_fewer_bits": ("wide", "fp32: bf16 passes its gate"),
    "gates_catch_garbage": ("open", "bf16: .* by garbage, 1e.09 allowed"),
    "flops_are_counted": ("cheap", r"2.097e\+06 FLOPs declared, 4.194e\+06 counted: at most 10.*% apart"),
    "bytes_hold_the_weights": ("weightless", r"fp32: 1.024e\+04 bytes, and the weights have 1.049e\+06"),
    "runs_are_audited": ("strays", "torch: .*wrong outputs"),
}


def of_a_suite(check: Any, *faults: str) -> Any:
    """The result of a check of the faulty suite."""
    found = registry.find("suites", [FAULTY])["faulty"]
    options = {"broken": ",".join(faults)} if faults else {}
    with ExitStack() as stack:
        return apply(check, suite.SuiteTrials(found, Config(suites={"faulty": options}), stack), runs_here=True)


@pytest.fixture(scope="module")
def faultless() -> Iterator[suite.SuiteTrials]:
    """Each of its trials is made once for all checks."""
    with ExitStack() as stack:
        yield suite.SuiteTrials(registry.find("suites", [FAULTY])["faulty"], Config(), stack)


@pytest.mark.slow
@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_each_check_of_a_suite_passes_and_catches_its_fault(
    check: Any, faultless: suite.SuiteTrials, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "ADAPTERS", ("torch",))
    fault, message = CAUGHT_IN_SUITES[check.__name__]
    passed, failed = apply(check, faultless, runs_here=True), of_a_suite(check, fault)
    assert passed.state == "passed", str(passed)
    assert failed.state == "failed" and re.search(message, failed.message), str(failed)


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["unsupported", None], "passed"),
        (["unsupported", "crashed"], "passed"),  # `claims_run` reports it
        (["unsupported", "unsupported"], "not checked"),
    ],
)
def test_a_suite_is_supported_if_it_runs_or_fails_in_any_precision(kinds: list[str | None], state: str) -> None:
    errors = [kind and SimpleNamespace(kind=kind, message="no ONNX graph") for kind in kinds]
    trials: Any = SimpleNamespace(claimed=[SimpleNamespace(error=error) for error in errors])
    result = apply(suite.supported, trials)
    assert (result.state, result.message) == (state, "supported" if state == "passed" else "no ONNX graph")


@pytest.mark.slow
def test_an_error_of_a_suite_is_its_own_and_a_suite_without_a_gate_is_not_audited() -> None:
    raised = of_a_suite(suite.the_reference_has_no_error, "raises")
    assert (raised.state, raised.message.startswith("it raised ZeroDivisionError: no rows")) == ("failed", True)
    assert of_a_suite(suite.gates_catch_garbage, "unaudited").state == "not checked"


def test_without_torch_only_what_needs_no_reference_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "ENGINE", registry.Plugin("adapters", "counted", "no_such_module:Counted", ""))
    states = [of_a_suite(check).state for check in suite.CHECKS[:-1]]
    assert states == ["passed"] * 3 + ["not checked"] * 8


@pytest.mark.slow
def test_attention_is_counted_and_a_table_is_not_read_as_a_whole() -> None:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(100, 8), nn.Linear(8, 8, bias=False)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
            x = self.table(ids)[:, None]
            return (self.linear(F.scaled_dot_product_attention(x, x, x)),)

    class Reader:
        def spec(self, name: str) -> Spec:
            return Spec((100, 8) if name == "table.weight" else (8, 8))

        def read(self, name: str, into: Array) -> None:
            into[...] = 1

    class Attentive(Null):
        def graphs(self) -> Mapping[str, Graph]:
            return {"embed": Graph({"ids": Spec(("batch", 4), "int64")}, {}, {"y": Spec(())}, Network, bytes)}

        def weights(self) -> Any:
            return Reader()

        def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
            yield session.get(*session.run("embed", session.put(feed["ids"])))

    found = suite.ENGINE.load()({"count": "true"})
    with found.open(CPU, Attentive("smoke", {}), "fp32", Use.of("single-stream")) as runner:
        assert [out.shape for out in runner({"ids": np.zeros((2, 4), np.int64)})] == [(2, 1, 4, 8)]
        attention, linear = 2 * 2 * (2 * 4 * 4 * 8), 2 * (2 * 4 * 8 * 8)
        assert runner.facts == {"flops": str(attention + linear), "weights": "64"}


def test_weights_are_rounded_to_fewer_bits() -> None:
    values = np.array([[1.0, 0.5, -0.5, 0.0], [127.0, 1.0, -2.4, 64.0]], np.float32)
    assert suite.integers(values[1:], 8, None).tolist() == [[127, 1, -2, 64]]
    assert suite.integers(values, 2, None).tolist() == [[1, 0, 0, 0], [127, 0, 0, 127]]
    assert suite.integers(values, 3, 2).tolist() == [[0.75, 0.5, -0.5, 0], [95.25, 0, 0, 48]]


@pytest.mark.slow
def test_a_suite_is_checked_by_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIXMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "CHECKS", suite.CHECKS[:2])
    check = ["check", "suite", FAULTY]
    done = CliRunner().invoke(main, check)
    assert (done.exit_code, "suite faulty: 2 passed, 0 failed" in done.output) == (0, True), done.output
    done = CliRunner().invoke(main, ["check", "suite", "lmm"])
    assert (done.exit_code, "did you mean llm?" in done.output) == (2, True)


def test_a_check_that_was_not_made_is_no_failure_and_no_check_at_all_is_no_pass() -> None:
    def cannot(trials: None) -> str:
        raise NotChecked("there is one device here")

    def breaks(trials: None) -> str:
        raise CheckFailed("it broke")

    def passes(trials: None) -> str:
        return "fine"

    def report(*checks: Any) -> Report:
        facts = {"kind": "adapter", "name": "acme", "origin": "", "source": "", "sha256": "", "mixmark": "1"}
        results = tuple(apply(check, None) for check in checks)
        return Report.model_validate({**facts, "created_utc": "", "devices": (), "verdicts": results})

    assert report(cannot, passes).passed
    assert not report(cannot).passed
    assert not report(cannot, passes, breaks).passed
    assert str(report(cannot, passes, breaks)).splitlines() == [
        "adapter acme: 1 passed, 1 failed, 1 not checked",
        "not checked: cannot: there is one device here (docs/capabilities/kit/conformance.md#cannot)",
        "failed: breaks: it broke (docs/capabilities/kit/conformance.md#breaks)",
    ]


def test_an_adapter_that_is_not_here_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXMARK_LOCK", str(tmp_path / "lock"))
    done = CliRunner().invoke(main, ["check", "adapter", "toch"])
    assert (done.exit_code, "did you mean torch?" in done.output) == (2, True)
    assert os.listdir(tmp_path) in ([], ["lock"])


def test_nothing_is_recorded_where_nothing_removes_private_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "services", {})
    done = CliRunner().invoke(main, ["check", "torch", "--record", str(tmp_path / "contact.json")])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "nothing that is installed removes private texts" in done.output


def test_every_check_has_its_place_in_the_docs() -> None:
    page = (ROOT / "docs/capabilities/kit/conformance.md").read_text("utf-8")
    names = [each.__name__ for each in (*CHECKS, *meter.CHECKS, *suite.CHECKS)]
    assert [each for each in anchors(page) if "_" in each] == names
