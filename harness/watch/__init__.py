"""What the machine is, and what happens to it while a worker measures."""
