"""Boxoban."""
