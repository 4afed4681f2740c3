"""The broad mixes: all suites at once, for a score without a rank."""

from __future__ import annotations

from pathlib import Path

from mixmark.harness.contracts.toml import read_toml

MIXES = read_toml(Path(__file__).with_name("mixes.toml"), "the broad mixes")
