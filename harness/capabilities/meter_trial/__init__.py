"""The energy sources of this machine, tried outside of a run: the command meters."""
