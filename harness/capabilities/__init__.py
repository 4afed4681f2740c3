"""What no score needs. Each capability is one folder that hangs on the core by a seam, and may be deleted."""
