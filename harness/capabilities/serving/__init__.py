"""Serving: the mix as requests that a policy assigns to devices. The score is not served but dispatched."""
