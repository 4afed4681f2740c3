"""Writes and reads result folders."""
