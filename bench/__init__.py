"""Speed and memory, each as a ratio against a peer run beside it. None of it is a test."""
