"""Formats of `mixmark export` that hold every suite."""
