"""Mixmark's engine: discover, plan, drive, record, validate, score, report, submit."""

VERSION = "0.1.0"
"""Mixmark's version, which pyproject.toml takes from here: a worker of another version is refused."""
