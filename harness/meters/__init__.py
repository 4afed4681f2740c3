"""The built-in energy sources. Each is written like a vendor's plugin; docs/meters.md describes them."""
