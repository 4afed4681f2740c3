"""Engines as their own makers run them: what bench.routes measures the built-in routes against.

A peer is a context manager that is named after the suite and called with (tier, precision). It yields a function that
works for a few seconds by the engine's own loop and returns its rate in the suite's units per second; in llm without
the time and the token of the prompt.
"""
