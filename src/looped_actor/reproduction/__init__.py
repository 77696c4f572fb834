"""Reproduction of the paper by the names of its figures and tables: grids of runs, their cost, and reports."""
