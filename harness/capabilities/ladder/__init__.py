"""The ladder: the mix served by the plan as requests that arrive, at levels of load."""

HIGHEST = 0.9
"""The highest level of load. At levels closer to 1 the queue needs too long to settle."""
