"""Pipelines: a chain of suites with a deadline, several at a time, on all devices and on the best single one."""
