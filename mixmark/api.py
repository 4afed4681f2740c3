"""The names that a plugin imports from `mixmark`."""

from mixmark.harness.adapters.devices import gpu_id as gpu_id
from mixmark.harness.contracts.errors import (
    MixmarkError as MixmarkError,
    PluginError as PluginError,
    ResultError as ResultError,
    Unsupported as Unsupported,
    UsageError as UsageError,
    WrongOutput as WrongOutput,
    refuse_options as refuse_options,
)
from mixmark.harness.contracts.protocols import (
    AcceleratorState as AcceleratorState,
    Adapter as Adapter,
    Array as Array,
    Check as Check,
    Continues as Continues,
    Discloses as Discloses,
    Feed as Feed,
    Feeds as Feeds,
    Format as Format,
    Graph as Graph,
    GraphRunner as GraphRunner,
    Helpers as Helpers,
    Meter as Meter,
    OwnReference as OwnReference,
    Preparer as Preparer,
    Runner as Runner,
    Sample as Sample,
    Session as Session,
    Spec as Spec,
    State as State,
    Suite as Suite,
    Tensor as Tensor,
    Use as Use,
    Value as Value,
    Watcher as Watcher,
    Weights as Weights,
)
from mixmark.harness.contracts.schema import (
    BITS_PER_WEIGHT as BITS_PER_WEIGHT,
    SCHEMA as SCHEMA,
    Absent as Absent,
    ClockReason as ClockReason,
    Completion as Completion,
    Completions as Completions,
    Cost as Cost,
    Device as Device,
    Domain as Domain,
    Finding as Finding,
    Gate as Gate,
    LatencyLimits as LatencyLimits,
    Precision as Precision,
    Record as Record,
    Result as Result,
    Route as Route,
    System as System,
    UnitNames as UnitNames,
    WeightClass as WeightClass,
)
from mixmark.harness.judge.assessment import Assessment as Assessment, Reporter as Reporter
from mixmark.harness.plugins.model_cache import converted as converted
from mixmark.harness.plugins.registry import load_suite as load_suite
