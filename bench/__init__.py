"""Benchmarks of speed and memory, each as a ratio to a peer that runs beside it. They are not tests."""
