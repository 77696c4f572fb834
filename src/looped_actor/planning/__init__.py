"""Cost of a run before it starts: by formula, timed here, or compiled for chips that are not attached."""
