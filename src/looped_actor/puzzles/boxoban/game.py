"""Boxoban as a `Game`."""

from looped_actor.puzzles.boxoban import generator, pictures, rules, solver
from looped_actor.puzzles.boxoban.baselines import draw_action, play_greedily
from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.boxoban.teacher import BoxobanTeacher
from looped_actor.puzzles.game import Game
from looped_actor.puzzles.grid import Direction

BOXOBAN = Game[BoxobanBoard](
    name="boxoban",
    board=BoxobanBoard,
    kinds=tuple(int(kind) for kind in rules.KINDS),
    valid=rules.valid,
    planes=len(rules.Cell),
    time_limit=rules.TIME_LIMIT,
    num_actions=lambda height, width: len(Direction),
    step=rules.step,
    environment=Boxoban,
    name_actions=pictures.name_actions,
    locate_action=pictures.locate_action,
    solve=solver.solve_cells,
    replay=solver.replay,
    teacher=BoxobanTeacher,
    distance="pushes",
    recipe=generator.BoxobanRecipe,
    generate_batch=generator.generate_batch,
    candidates_per_batch=generator.CANDIDATES_PER_BATCH,
    draw_action=draw_action,
    play_greedily=play_greedily,
    draw=pictures.draw,
    terminal_rows=pictures.terminal_rows,
)
