"""Policies: the mix by other policies than the plan, in turns with it, which shows what the plan gains."""
