"""The file formats of `mixmark export` that can hold every suite."""
