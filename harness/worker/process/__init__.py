"""The operating system, as workers need it: child processes, the memory of the host, control groups, and small files."""
