"""What a run would take on chips that are not here: its programs compiled for them, and read."""
