"""Configuration: one schema (keys, defaults, units, bounds, meanings), and how files and variables are read."""
