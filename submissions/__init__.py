"""Entries for a board: made from result folders, checked as hostile input, and compared."""
