"""The engine of Mixmark: a folder for each word of the sentence in docs/architecture.md."""

VERSION = "0.1.0"
"""Mixmark's version, which pyproject.toml takes from here: a worker of another version is refused."""
