"""Runs and policies: configurations, presets, one object per kind of run, folders, evaluation, export."""
