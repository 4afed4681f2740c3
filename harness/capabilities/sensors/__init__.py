"""Sensors that Linux and AMD's library read: hwmon and amdsmi. Neither meter has ever read real hardware."""
