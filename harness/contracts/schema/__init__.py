"""The facts of a run: frozen, checked on construction, units in names; unknown is None and never 0.

    device   the base class of facts; devices, and the routes of suites on devices
    plan     limits, shares, tasks, phases, the mix and its placement
    record   one share's outcome: completions or an error, the audit, the conditions
    result   the whole run: its hosts, their software and clocks, and the energy of its phases

Conclusions (throughput, percentiles, findings, scores) are functions of these facts, in `harness/judge`, and are not
stored. All times are integer nanoseconds on CLOCK_MONOTONIC of the machine that leads the run. The timestamps of
another host are moved onto that clock, within the bound of the host's `Connection`.

In a run with several hosts each host has a name, and the names of its parts begin with it: the device `host1/cpu:0`,
the memory pool `host1/host`, the energy domain `host1/rapl:package-0`, which covers `host1/node`.
"""

from mixmark.harness.contracts.schema.device import (
    BITS_PER_WEIGHT as BITS_PER_WEIGHT,
    HOST_NAME as HOST_NAME,
    HOST_POOL as HOST_POOL,
    HOST_PROCESSOR as HOST_PROCESSOR,
    Device as Device,
    Fact as Fact,
    Int64s as Int64s,
    Precision as Precision,
    Route as Route,
    ScenarioName as ScenarioName,
    Tier as Tier,
    WeightClass as WeightClass,
    weight_class as weight_class,
)
from mixmark.harness.contracts.schema.plan import (
    MIXES as MIXES,
    LatencyLimits as LatencyLimits,
    Limits as Limits,
    Mix as Mix,
    Phase as Phase,
    Placement as Placement,
    Purpose as Purpose,
    Rate as Rate,
    ServiceLimits as ServiceLimits,
    Share as Share,
    Task as Task,
)
from mixmark.harness.contracts.schema.record import (
    DIGEST_BYTES as DIGEST_BYTES,
    PROTECTIVE as PROTECTIVE,
    Absent as Absent,
    AcceleratorConditions as AcceleratorConditions,
    Audit as Audit,
    ClockReason as ClockReason,
    Completion as Completion,
    Completions as Completions,
    Conditions as Conditions,
    Cost as Cost,
    Exemption as Exemption,
    Failure as Failure,
    Found as Found,
    Gate as Gate,
    PowerSource as PowerSource,
    RateTrial as RateTrial,
    Record as Record,
    SearchEnd as SearchEnd,
    Trial as Trial,
)
from mixmark.harness.contracts.schema.result import (
    BUILT_IN as BUILT_IN,
    SCHEMA as SCHEMA,
    Boundary as Boundary,
    Clock as Clock,
    Connection as Connection,
    Domain as Domain,
    Environment as Environment,
    Finding as Finding,
    FindingValue as FindingValue,
    Hosts as Hosts,
    Metering as Metering,
    NoiseFloor as NoiseFloor,
    Result as Result,
    Samples as Samples,
    Severity as Severity,
    SuiteFacts as SuiteFacts,
    System as System,
    UnitNames as UnitNames,
    digest_of_code as digest_of_code,
)
