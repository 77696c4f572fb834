"""Boxoban and Rush Hour: rules, environments, solvers, generators, pictures, and banks of levels.

Each game is a folder, and its `game.py` lists its parts. To add a game, copy a folder, rewrite its parts, and
add its `Game` to `catalogue.py`. Then add its name to `looped_actor.names`, and the shapes of its
observations and actions to `looped_actor.models.tasks`.

The modules of this folder serve all games:

- `grid`, `grid_jax`: positions, directions, and boards as arrays of cells.
- `game`, `catalogue`: the parts of a game; all games by name.
- `banks`, `sources`, `generate`: levels in files, from public collections, and generated.
- `search`, `solutions`, `replay`: results of solvers, for one level and for banks.
- `teachers`: helpers of the solvers that label states.
- `drawing`, `pictures`: shapes; boards as SVG, PNG, GIF and text.
- `gymnasium`: one board at a time for Gymnasium.
- `random_numbers`, `hash_table`: parts of compiled generators and solvers.
"""
