"""The pictures of a page as wide as it is: the mix over time, and the routes of each suite as bars."""
