"""The built-in adapters. Each is a plugin that runs suites on devices through one runtime."""
