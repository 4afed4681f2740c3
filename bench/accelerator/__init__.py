"""What a machine with an accelerator can show, in parts of at most nine minutes: `python -m bench.accelerator`."""
