"""Compares results: solo measurements, and whole machines."""
