"""Mixmark's engine: discover, plan, drive, record, validate, score, report, submit."""
