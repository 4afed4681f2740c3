"""Devices, configuration, and the machine with what disturbs it."""
