"""A whole run: phases, solo measurements, the mix, meters, audits."""
