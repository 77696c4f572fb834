"""Reproduction of the paper's figures and tables by name: grids of runs, their cost, and reports."""
