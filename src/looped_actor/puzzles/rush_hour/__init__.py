"""Rush Hour: slide cars and trucks until the red car is at the right border.

A vehicle moves along its own row or column only. An action names a cell and a way, and slides the vehicle on
that cell by one. Each step costs 0.1, solving the level gives 10, and a step also gives the change of a
potential: minus the occupied cells ahead of the red car, minus its distance to the exit.

In solutions, as in the literature, a move slides a vehicle any distance. Environments and the teacher count
steps.

- `rules`, `rules_jax`: the game in plain Python, and the same for thousands of boards at once.
- `env`: the JAX environment.
- `solver`: optimal solutions, and clusters: all boards that can be reached from one. Its compiled parts:
  `solver_kernel` (breadth-first search), `optimal_moves` (labels of many states).
- `teacher`: the solver as a teacher.
- `generator`: random levels, the hardest of their clusters. `enumeration`: all interesting positions of small
  boards.
- `baselines`: a random and a greedy player.
- `pictures`: boards as shapes and as coloured text.
- `game`: all of this as one `Game`.
"""
