"""The operating system, as workers need it: child processes, the host's memory, control groups, small files."""
