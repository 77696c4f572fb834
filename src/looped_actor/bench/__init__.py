"""Timings, as ratios of things that take turns in one run."""
