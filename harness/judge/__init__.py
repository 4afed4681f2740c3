"""Everything that is concluded from a result."""
