"""The Python and the packages of an interpreter, which a worker reports of its own."""

from __future__ import annotations

import importlib.metadata
import platform

from mixmark.harness.contracts.text import plain

PACKAGES = """
    numpy torch triton onnxruntime onnxruntime-gpu onnx onnxscript openvino tensorrt safetensors
    intel-extension-for-pytorch mkl nvidia-ml-py nvidia-cublas-cu12 nvidia-cudnn-cu12 pydantic psutil
"""


def python() -> str:
    """The implementation and version of this interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def packages() -> dict[str, str]:
    """The versions of PACKAGES that this interpreter's environment holds."""
    return {name: version for name in PACKAGES.split() if (version := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return plain(importlib.metadata.version(distribution), 40)
    except importlib.metadata.PackageNotFoundError:
        return None
