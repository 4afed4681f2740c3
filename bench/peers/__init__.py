"""Engines as their makers run them. bench.routes compares the built-in routes with them.

A peer is a context manager that is named after the suite and called with (tier, precision). It yields a function that
runs the engine's loop for a few seconds and returns its rate in the suite's units per second; of tokens without
the time and the first token of the prompt.
"""
