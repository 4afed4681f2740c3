"""Result -> text, and nothing else: reporters are pure functions."""
