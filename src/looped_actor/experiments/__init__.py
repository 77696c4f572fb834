"""Tasks, arms and scales by name, and how to build what they describe."""
