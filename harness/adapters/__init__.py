"""Built-in ways onto silicon. Each is a plugin like any vendor's."""
