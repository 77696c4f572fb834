"""Measuring: what a policy achieves and what it costs."""
