"""The engine of Mixmark: a folder for each word of the sentence in docs/architecture.md."""

if __name__ == "harness":
    raise ImportError("import mixmark.harness: under another name every class would exist twice")

VERSION = "0.1.0"
"""Mixmark's version, which pyproject.toml takes from here: a worker of another version is refused."""
