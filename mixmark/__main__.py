"""`python -m mixmark` is the command line."""

from mixmark.harness.cli.__main__ import main

main()
