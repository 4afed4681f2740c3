"""The run of two suites on two devices that sleep for given times, to which each experiment adds its phases."""

from tests.measure.test_benchmark import shell as duo

__all__ = ["duo"]
