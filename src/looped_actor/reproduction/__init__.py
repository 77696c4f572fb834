"""The paper, by the names of its figures and tables: grids of runs, plans, reports."""
