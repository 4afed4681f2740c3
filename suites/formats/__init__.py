"""The file formats of `mixmark export` for every suite."""
