"""The rules that a result is judged by: evidence -> findings. docs/rules.md lists them all.

integrity      what a cheat would break: a record that is invalid by it counts in no score
interference   what disturbed a measurement
records        whether each record finished, is steady and precise, and kept its limits
mix            whether the score is complete, bounded and graded
energy         what is metered, and whether the sources agree
consistency    facts that contradict each other; the store refuses a folder that has such
registered     where they and the rules of other packages are registered
"""

from mixmark.harness.judge.rules import consistency, energy, integrity, interference, mix, records, registered

__all__ = ("consistency", "energy", "integrity", "interference", "mix", "records", "registered")
