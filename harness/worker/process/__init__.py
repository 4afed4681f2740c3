"""Child processes and what they leave behind."""
