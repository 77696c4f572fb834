"""Boxoban (Sokoban): push every box onto a target.

The player walks up, right, down or left, and pushes a box in front of it by one cell if the cell behind the
box is free. Boxes cannot be pulled. Each step costs 0.1; a box that enters a target gives 1, one that leaves
it costs 1, and solving the level gives 10.

- `rules`, `rules_jax`: the game in plain Python, and the same for thousands of boards at once.
- `env`: JAX environments.
- `solver`: move-optimal solutions. Its compiled parts: `solver_board` (distances and deadlocks),
  `solver_kernel` (A* search), `optimal_pushes` (all optimal solutions at once), `optimal_moves` (labels of
  many states).
- `teacher`: the solver as a teacher. `plans`: pushes of optimal solutions as labels of probes.
- `generator`: random levels by reverse play.
- `baselines`: a random and a greedy player.
- `pictures`: boards as shapes and as coloured text.
- `game`: all of this as one `Game`.
"""
