"""Repeats the audits of a result folder."""
