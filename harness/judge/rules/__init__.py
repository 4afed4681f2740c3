"""The rules that a result is judged by: evidence -> findings. docs/rules.md lists them all.

integrity      what a cheat would break: a record that is invalid by it counts in no score
interference   what disturbed a measurement
quality        whether each record, the mix and the energy have a figure, and how well it is known
consistency    facts that contradict each other; the store refuses a folder that has such
registered     where they and the rules of other packages are registered
"""

from mixmark.harness.judge.rules import consistency, integrity, interference, quality, registered

__all__ = ("consistency", "integrity", "interference", "quality", "registered")
