"""The built-in energy sources. Each is a plugin as a vendor would write one; docs/energy-sources.md describes them."""
