"""Runs as data: configurations, their presets, and what can be asked of a policy."""
