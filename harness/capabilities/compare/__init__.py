"""Compares results, solo measurements and whole machines, and measures the noise floor of a machine."""

from mixmark.harness.plugins.registry import PluginKind

KIND = PluginKind(("__call__",))
"""A form of comparison: a function from a `MachineComparison` to text."""
