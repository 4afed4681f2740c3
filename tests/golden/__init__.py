"""One result where everything happens, and what each reporter makes of it, byte for byte.

python -m tests.golden    rewrites the files; read the diff before you commit it
"""
