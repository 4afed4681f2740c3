"""Results side by side, each form a pure function from the comparison to text."""
