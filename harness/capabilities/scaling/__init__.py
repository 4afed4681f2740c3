"""Scaling: the mix on the first 1, 2, 4, … of several hosts, which shows how its rate grows with them."""
