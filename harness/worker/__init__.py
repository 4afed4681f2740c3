"""The process in which an adapter runs, and its parent's handle on it."""
