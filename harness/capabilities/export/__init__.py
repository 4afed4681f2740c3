"""The command `mixmark export`: a suite's network and weights in files that other programs read."""
