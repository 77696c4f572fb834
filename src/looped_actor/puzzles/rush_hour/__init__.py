"""Rush Hour."""
