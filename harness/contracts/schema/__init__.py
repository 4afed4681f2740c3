"""The facts of a run: frozen, checked on construction, units in names; unknown is None and never 0.

    device   devices, and the routes by which a suite runs on them
    plan     limits, shares, tasks, phases, the mix and its placement
    record   what happened to one share: completions or an error, the audit, the conditions
    energy   the domains that a meter reads, and its samples
    result   the hosts, their software and clocks, and the whole run

Conclusions (throughput, percentiles, findings, scores) are functions of these facts. They live in `harness/judge`, and
none is stored. All times are integer nanoseconds on CLOCK_MONOTONIC of the machine that leads the run. The timestamps
of another host are moved onto that clock, within the bound of the host's `Connection`.

In a run with several hosts each host has a name, and the names of its parts begin with it: the device `host1/cpu:0`,
the memory pool `host1/host`, the energy domain `host1/rapl:package-0`, which covers `host1/node`.
"""

from mixmark.harness.contracts.schema.device import (
    BITS_PER_WEIGHT,
    HOST_NAME,
    HOST_POOL,
    HOST_PROCESSOR,
    Device,
    Precision,
    Route,
    ScenarioName,
    Tier,
    WeightClass,
    weight_class,
)
from mixmark.harness.contracts.schema.energy import Boundary, Domain, Metering, Samples
from mixmark.harness.contracts.schema.fact import Fact, Int64s
from mixmark.harness.contracts.schema.plan import (
    MIXES,
    LatencyLimits,
    Limits,
    Mix,
    Phase,
    Placement,
    Purpose,
    Rate,
    ServiceLimits,
    Share,
    Task,
)
from mixmark.harness.contracts.schema.record import (
    DIGEST_BYTES,
    HOSTED,
    NO_GATE,
    NOT_ASKED,
    PROTECTIVE,
    Absent,
    AcceleratorConditions,
    Audit,
    ClockReason,
    Completion,
    Completions,
    Conditions,
    Cost,
    Failure,
    Gate,
    RateTrial,
    Record,
    SearchEnd,
    Trial,
)
from mixmark.harness.contracts.schema.result import (
    SCHEMA,
    Clock,
    Connection,
    Environment,
    Finding,
    Hosts,
    NoiseFloor,
    Result,
    SuiteFacts,
    System,
    UnitNames,
)

__all__ = [
    "BITS_PER_WEIGHT",
    "DIGEST_BYTES",
    "HOSTED",
    "HOST_NAME",
    "HOST_POOL",
    "HOST_PROCESSOR",
    "MIXES",
    "NOT_ASKED",
    "NO_GATE",
    "PROTECTIVE",
    "SCHEMA",
    "Absent",
    "AcceleratorConditions",
    "Audit",
    "Boundary",
    "Clock",
    "ClockReason",
    "Completion",
    "Completions",
    "Conditions",
    "Connection",
    "Cost",
    "Device",
    "Domain",
    "Environment",
    "Fact",
    "Failure",
    "Finding",
    "Gate",
    "Hosts",
    "Int64s",
    "LatencyLimits",
    "Limits",
    "Metering",
    "Mix",
    "NoiseFloor",
    "Phase",
    "Placement",
    "Precision",
    "Purpose",
    "Rate",
    "RateTrial",
    "Record",
    "Result",
    "Route",
    "Samples",
    "ScenarioName",
    "SearchEnd",
    "ServiceLimits",
    "Share",
    "SuiteFacts",
    "System",
    "Task",
    "Tier",
    "Trial",
    "UnitNames",
    "WeightClass",
    "weight_class",
]
