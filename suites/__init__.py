"""The standard workloads, one file (or one small folder) each."""
