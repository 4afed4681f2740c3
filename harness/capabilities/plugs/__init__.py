"""Meters that are asked over the network or by a command: power plugs, and the management controllers of servers."""
