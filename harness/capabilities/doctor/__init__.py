"""What should be changed on a machine before a run: the command doctor."""
