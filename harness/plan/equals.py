"""Classes of equal devices, of which a preset may measure one in place of all. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

from mixmark.harness.contracts.device_ids import host_of, local, piece
from mixmark.harness.contracts.schema import Result
from mixmark.harness.plan import presets


def equals(result: Result) -> Mapping[str, tuple[str, ...]]:
    """The ids of the class of each device that has an equal, itself included, in the order of the result. Empty if the
    preset measures each device.

    Equal devices have the same model, memory, parts, precisions, driver and routes, on hosts of the same system and
    software. A slice, a hosted service and a device without a name have no equal.
    """
    if not presets.of(result.preset, result.tier).equals_once:
        return {}
    machines, cards = defaultdict[str, list[str]](list), dict[tuple[str, str], object]()
    for name, software in sorted(result.environments.items()):
        machines[host_of(name)].append(f"{local(name)} {software.model_dump_json()}")
    for host, system in result.systems.items():
        machines[host].append(system.model_dump_json(exclude={"accelerators"}))
        cards |= {(host, each.get("id", "")): sorted({**each, "id": ""}.items()) for each in system.accelerators}
    routes = defaultdict[str, set[tuple[str, ...]]](set)
    for suite, id, *engine in (share.route.key for phase in result.candidates for share in phase.shares):
        routes[id].add((suite, *engine))
    classes: dict[Hashable, list[str]] = defaultdict(list)
    for device in result.devices:
        if device.name and not (device.slice_of or device.hosted):
            pieces = map(piece, device.silicon)
            parts = sorted(str((of, cards.get((device.host, local(part))))) for part, _, of in pieces)
            shape = device.model_dump_json(exclude={"id", "parts", "memory_pool"})
            own = (shape, device.in_host_memory, frozenset(routes[device.id]))
            classes[*own, *parts, *machines[device.host]].append(device.id)
    return {id: tuple(ids) for ids in classes.values() if len(ids) > 1 for id in ids}
