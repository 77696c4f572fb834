"""Rush Hour as a `Game`."""

from looped_actor.puzzles.game import Game
from looped_actor.puzzles.rush_hour import generator, pictures, rules, solver
from looped_actor.puzzles.rush_hour.baselines import draw_action, play_greedily
from looped_actor.puzzles.rush_hour.env import RushHour
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.puzzles.rush_hour.teacher import RushHourTeacher

RUSH_HOUR = Game[RushHourBoard](
    name="rush-hour",
    board=RushHourBoard,
    kinds=tuple(int(kind) for kind in rules.KINDS),
    valid=rules.valid,
    planes=len(rules.Cell),
    time_limit=rules.TIME_LIMIT,
    num_actions=lambda height, width: 2 * height * width,
    step=rules.step,
    environment=RushHour,
    name_actions=pictures.name_actions,
    locate_action=pictures.locate_action,
    solve=solver.solve_cells,
    replay=solver.replay,
    teacher=RushHourTeacher,
    distance="moves",
    recipe=generator.RushHourRecipe,
    generate_batch=generator.generate_batch,
    candidates_per_batch=generator.CANDIDATES_PER_BATCH,
    draw_action=draw_action,
    play_greedily=play_greedily,
    draw=pictures.draw,
    terminal_rows=pictures.terminal_rows,
)
