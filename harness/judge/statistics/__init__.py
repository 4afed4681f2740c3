"""Statistics of one record: timestamps, intervals, steadiness, and the distributions that intervals need."""
