"""What the loops do: recorded, probed, counted and drawn. Every figure is made from a table on disk."""
