"""Policies by name or folder: trained, loaded, evaluated, exported; and those that come with the package."""
