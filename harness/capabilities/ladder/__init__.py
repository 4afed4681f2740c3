"""The ladder: the mix served by the plan as requests that arrive, at levels of load."""
