"""Finds, loads and calls plugins, and keeps the models that adapters convert."""
