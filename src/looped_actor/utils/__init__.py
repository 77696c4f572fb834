"""Helpers without a subject: files, processes, JSON, errors."""
