"""Films of episodes, with the loops of every decision drawn in, and what it leaned to after each of them."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from looped_actor.loop import HaltingRule
from looped_actor.models import GoalObservation
from looped_actor.robots.evaluation import shaken
from looped_actor.robots.ogbench import Arena, episode_seed
from looped_actor.utils.processes import Progress, no_progress

_INK, _PAPER, _FAINT, _BAR = "#1c1c1c", "#ffffff", "#d9d9d9", "#c4552d"
_STRIP = 92  # pixels below the picture: two lines of text, and bars
_LINE = 17
_MARGIN = 10
_BESIDE = 190  # pixels for the choices of a decision


class Choices(NamedTuple):
    """What a decision could choose from, and how probable each was after each loop."""

    names: list[str]
    chances: list[list[float]]
    """For each name, after each loop."""


class EpisodePictures(NamedTuple):
    """What an episode looked like before each decision and at its end, and the loops between."""

    title: str
    success: bool
    loops: list[int]
    pictures: list[np.ndarray]
    choices: Sequence[Choices] = ()
    """Of every decision; then each of its loops is a frame."""


def film_episode(
    policy: Any,
    *,
    task: int,
    number: int = 0,
    seed: int = 0,
    size: int = 320,
    halting: HaltingRule | None = None,
    time_limit: int | None = None,
    deviation: float = 0.0,
    progress: Progress = no_progress,
) -> EpisodePictures:
    """Play an episode of an evaluation by itself, and look at every step.

    It begins as the episode of that number does in an evaluation, with the same noise. A decision computed
    alone may differ from one computed in a batch by rounding, so its course may differ too.

    Args:
      policy: a `Policy` of the world.
      task: which of the world's five.
      number: of the episode.
      seed: of the evaluation.
      size: pixels of the picture's sides.
      halting: another rule than in training.
      time_limit: steps after which to end. Default: the world's own.
      deviation: of the noise that is added to the mean action.
      progress: told the steps played.
    """
    arena = Arena(policy.run.control.config.task, pictures=True, width=size, height=size)
    own_seed = episode_seed(seed, task, number)
    chance = np.random.default_rng(own_seed)
    state, goal = arena.begin(task, own_seed)
    limit = min(time_limit or arena.time_limit, arena.time_limit)
    pictures, loops, success, memory = [arena.picture()], [], False, None
    for step in range(limit):
        acted = policy.act(GoalObservation(state, goal), halting=halting, memory=memory)
        seen = arena.step(shaken(acted.action, deviation, chance))
        loops.append(int(acted.loops))
        pictures.append(arena.picture())
        state, success, memory = seen.state, seen.success, acted.memory
        progress(step + 1, limit)
        if seen.over or success:
            break
    return EpisodePictures(arena.task_name(task), success, loops, pictures)


def write_gif(
    episode: EpisodePictures, most_loops: int, path: pathlib.Path, every: int = 2, milliseconds: int = 100
) -> None:
    """A GIF that rests on its last frame.

    Args:
      episode: what to show.
      most_loops: the height of the bars.
      path: the file.
      every: steps from one frame to the next.
      milliseconds: that each frame is shown.
    """
    times = [
        (step, loop)
        for step in range(0, len(episode.loops), every)
        for loop in (range(1, episode.loops[step] + 1) if episode.choices else [episode.loops[step]])
    ]
    frames = [_frame(episode, *time, most_loops) for time in [*times, (len(episode.loops), 0)]]
    path.parent.mkdir(parents=True, exist_ok=True)
    # What was decided is seen longer than what was thought on the way.
    pace = [milliseconds // (1 if loop == episode.loops[step] else 3) for step, loop in times]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[*pace, 1500], loop=0)


def _frame(episode: EpisodePictures, step: int, loop: int, most_loops: int) -> Image.Image:
    """A picture, below it the loops of all decisions so far, and beside it the choices of this one."""
    picture = Image.fromarray(episode.pictures[step])
    width, height = picture.size
    beside = _BESIDE if episode.choices else 0
    frame = Image.new("RGB", (width + beside, height + _STRIP), _PAPER)
    frame.paste(picture, (0, 0))
    draw, font = ImageDraw.Draw(frame), ImageFont.load_default(13)
    loops = episode.loops
    over = step == len(loops)
    ending = "solved" if episode.success else "not solved"
    text = f"{episode.title}: {ending} after {step} steps" if over else f"{episode.title}, step {step}"
    draw.text((_MARGIN, height + 6), text, _INK, font)
    if not over:
        told = f"loop {loop} of at most {most_loops}" if beside else f"{loop} of {most_loops} loops"
        draw.text((_MARGIN, height + 6 + _LINE), told, _BAR, font)
    if beside and not over:
        _draw_choices(draw, font, episode.choices[step], loop, width + _MARGIN)
    width += beside
    floor, tall, room = height + _STRIP - 8, _STRIP - 2 * _LINE - 20, width - 2 * _MARGIN
    draw.line([(_MARGIN, floor), (width - _MARGIN, floor)], _FAINT)
    # One column of pixels can stand for several decisions: it shows the deepest of them.
    columns = np.array_split(np.arange(len(loops)), min(room, len(loops)))
    for i, of_column in enumerate(columns):
        shown = [loop if j == step else loops[j] for j in of_column if j <= step]
        if shown:
            left, right = (_MARGIN + round(k * room / len(columns)) for k in (i, i + 1))
            top = floor - round(tall * max(shown) / most_loops)
            now = not over and step in of_column
            draw.rectangle([left, top, max(left, right - 2), floor - 1], _BAR if now else _INK)
    return frame


def _draw_choices(draw: Any, font: Any, choices: Choices, loop: int, left: int) -> None:
    """A bar for each choice: how probable it is after a loop."""
    now = [chances[loop - 1] for chances in choices.chances]
    for row, (name, chance) in enumerate(zip(choices.names, now, strict=True)):
        top, colour = _MARGIN + row * 2 * _LINE, _BAR if chance == max(now) else _INK
        draw.text((left, top), f"{name}  {chance:.0%}", colour, font)
        right = left + round((_BESIDE - 2 * _MARGIN) * chance)
        draw.rectangle([left, top + _LINE, max(left, right), top + _LINE + 6], colour)
