"""The process that runs an adapter, and its parent's handle on it."""
