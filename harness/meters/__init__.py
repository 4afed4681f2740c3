"""Built-in sources of energy readings. Each is a plugin like any vendor's; docs/energy-sources.md says what each is."""
