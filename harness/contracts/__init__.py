"""What a plugin is, and the facts of a result. Pure: no file, clock or device."""
