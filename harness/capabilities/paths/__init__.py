"""Paths between memories: latency, bandwidth and joules of copies before the first phase, and copies beside the mix."""
