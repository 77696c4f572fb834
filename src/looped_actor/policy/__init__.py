"""Policies: saving, loading, cards and export."""
