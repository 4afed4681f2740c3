"""The ladder: the mix served as requests that arrive, at levels of load, by the plan and by other policies."""
