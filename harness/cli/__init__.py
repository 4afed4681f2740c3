"""The command line. `commands` lists the commands; each imports what is heavy when it runs."""
