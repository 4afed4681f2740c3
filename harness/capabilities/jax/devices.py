"""The devices of jax, of which a client claims each that it sees: they are listed in a process that ends, and a worker
chooses its chip by the vendor's variable before it has a client."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mixmark.harness.adapters.devices import nvidia_gpus
from mixmark.harness.contracts.errors import PluginError, Unsupported
from mixmark.harness.contracts.schema import Device

GPUS = ("cuda", "rocm", "gpu", "metal", "mtl", "mps", "mlx", "sycl", "oneapi", "xpu")
"""The platforms whose devices are GPUs; of other platforms they are NPUs."""
CHOOSES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
CHOOSES |= {"neuron": "NEURON_RT_VISIBLE_CORES", "sycl": "ZE_AFFINITY_MASK", "oneapi": "ZE_AFFINITY_MASK"}
"""The variable by which a process chooses chips of a platform, by their index; CUDA also takes a UUID."""
VARIABLES = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TF_CPP_MIN_LOG_LEVEL": "3"}
ONE_TPU = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LISTS = """
import json, sys, jax, numpy

def multiplies(device, dtype):
    try:
        ones = jax.device_put(numpy.ones((8, 8), jax.numpy.dtype(dtype)), device)
        return float((ones @ ones)[0, 0]) == 8
    except Exception:
        return False

for device in jax.local_devices():
    offered = [each for each, dtype in json.loads(sys.argv[1]).items() if multiplies(device, dtype)]
    memory_bytes = (device.memory_stats() or {}).get("bytes_limit")
    version = getattr(device.client, "platform_version", "")
    print(json.dumps(["device", device.platform, version, device.device_kind, memory_bytes, offered]))
"""
WITHIN_S = 100


def platform_of(platform: str, version: str) -> str:
    """cuda, rocm, tpu, …: jax calls NVIDIA's and AMD's platform gpu, and the client's version names it."""
    names = [name for name in CHOOSES if name in version.lower()]
    return names[0] if platform.lower() == "gpu" and names else platform.lower()


def has_plugin() -> bool:
    """Whether a PJRT plug-in is installed: a package of the namespace jax_plugins, an entry point, or libtpu."""
    spaces = importlib.util.find_spec("jax_plugins")
    folders: Sequence[str] = list(spaces.submodule_search_locations or ()) if spaces else ()
    by_entry = importlib.metadata.entry_points(group="jax_plugins")
    return bool(next(pkgutil.iter_modules(folders), None) or by_entry or importlib.util.find_spec("libtpu"))


def accelerators() -> Iterator[Device]:
    """The devices of jax's default platform; none if that is the CPU. Raises PluginError if jax fails."""
    env = {**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-c", LISTS, json.dumps(DTYPES)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WITHIN_S)
    if done.returncode:
        raise PluginError(f"jax fails: {(done.stderr.strip().splitlines() or ['no reason'])[-1][:300]}")
    yield from described([json.loads(line)[1:] for line in done.stdout.splitlines() if line.startswith('["device"')])


def described(listed: Sequence[Sequence[Any]]) -> Iterator[Device]:
    """listed: as LISTS prints it. NVIDIA's GPUs are those of NVML, by which their meter knows them."""
    platforms = [platform_of(platform, version) for platform, version, *_ in listed]
    by_nvml = list(nvidia_gpus(("fp32",))) if "cuda" in platforms else []
    for index, (platform, (*_, name, memory_bytes, offered)) in enumerate(zip(platforms, listed, strict=True)):
        id = f"{'gpu' if platform in GPUS else 'npu'}:{platform}{index}"
        own = {"id": id, "kind": id[:3], "name": name, "memory_pool": id, "memory_bytes": memory_bytes}
        found = by_nvml[index].model_dump() if platform == "cuda" and len(by_nvml) == len(listed) else own
        if platform != "cpu":
            yield Device.model_validate(found | {"precisions": tuple(offered)})


def virtual(count: int) -> Iterator[Device]:
    """So many devices that share the CPU."""
    for id in (f"simulated:jax{number}" for number in range(count)):
        yield Device(id=id, kind="simulated", name="virtual device of XLA", memory_pool=id, precisions=("fp32",))


def claim(device: Device, threads: int, count: int, on_host: bool) -> Any:
    """jax's device, the only one of the client where the platform has a variable. A process has one client, so what was
    chosen for it counts for later calls, too.

    threads: of the CPU. count: of virtual devices. Raises Unsupported if jax does not reach the device.
    """
    import jax

    name = device.id.partition(":")[2]
    platform = "cuda" if name.startswith("GPU-") else name.rstrip("0123456789")
    os.environ |= VARIABLES | (ONE_TPU if platform == "tpu" else {})
    os.environ.setdefault("PJRT_NPROC", str(threads))  # else XLA starts a thread for each CPU of the machine
    if variable := CHOOSES.get(platform):
        os.environ[variable] = name if name.startswith("GPU-") else name.removeprefix(platform)
    with suppress(RuntimeError):  # there is a client
        if on_host:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", max(1, count))
    found = [each for each in jax.local_devices() if (each.platform == "cpu") == on_host]
    index = int(name.removeprefix(platform)) if len(found) > 1 else 0
    if not 0 <= index < len(found):
        raise Unsupported(f"jax {jax.__version__} does not reach {device.id}")
    jax.config.update("jax_enable_x64", True)
    try:
        jax.device_put(np.full(1, 2**40), found[index]).block_until_ready()
    except Exception:  # a plug-in may raise anything; its integers then have 32 bits
        jax.config.update("jax_enable_x64", False)
    return found[index]
