"""Judgement -> text, and nothing else: reporters lay out what was concluded, and conclude nothing."""
