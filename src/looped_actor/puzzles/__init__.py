"""The puzzles: rules, environments, solvers, generators, and banks of levels."""
