"""The built-in adapters: each runs suites on devices by one runtime, and is a plugin like any vendor's."""
