"""The command `mixmark export`: a suite's weights in files that other programs read."""
