"""Plans what a run measures: presets, phases, and the placement of a mix with its bound. Pure."""
