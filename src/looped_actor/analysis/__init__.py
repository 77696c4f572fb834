"""Analyses of what the loops of trained policies compute.

Each analysis is one module. It writes a table (CSV), draws a figure from that table alone, and returns a
caption.

- `difficulty`: loops of a state against its distance from solved.
- `histogram`: loops of decisions.
- `caps`: success at other caps, thresholds and minimum loops.
- `compare`: training curves of several runs.
- `probes`: pushes of optimal solutions, read from the latents that `latents` records.
- `replay`: one episode of a puzzle as an HTML page and a GIF.
- `options`, `study`, `tables`, `drawing`: what they share.
"""
