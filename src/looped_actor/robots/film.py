"""Films of episodes, with the loops of every decision, and how likely its choices were after each of them."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from looped_actor.loop import HaltingRule
from looped_actor.models import GoalObservation
from looped_actor.policy.policy import Policy
from looped_actor.robots.evaluation import add_noise
from looped_actor.robots.ogbench import RobotEnv, episode_seed
from looped_actor.utils.processes import Progress, no_progress

_INK, _PAPER, _FAINT, _BAR = "#1c1c1c", "#ffffff", "#d9d9d9", "#c4552d"
# Sizes in pixels.
_FOOTER = 92  # below the picture: two lines of text, and bars
_SIDEBAR = 190  # right of the picture: the choices of a decision
_LINE = 17
_MARGIN = 10


class Choices(NamedTuple):
    """The choices of a decision."""

    names: list[str]
    probabilities: list[list[float]]
    """Probabilities of each choice, after each loop."""


class EpisodePictures(NamedTuple):
    """Pictures of an episode before each decision and at its end."""

    title: str
    success: bool
    loops: list[int]
    """Loops of every decision."""
    pictures: list[np.ndarray]
    """One more than there are decisions."""
    choices: Sequence[Choices] = ()
    """Choices of every decision. If given, a film has a frame for each loop."""


def film_episode(
    policy: Policy,
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
    """Play an episode of an evaluation again, and render every step.

    It starts as the episode of this number does in an evaluation, with the same noise. A decision computed
    alone may differ from one computed in a batch by rounding, so the episode may continue differently.

    Args:
      policy: a policy of a robot environment.
      task: number of the task.
      number: number of the episode.
      seed: seed of the evaluation.
      size: width and height of the pictures in pixels.
      halting: replaces the halting rule of training.
      time_limit: steps after which the episode is truncated. Default: OGBench's.
      deviation: standard deviation of noise that is added to the mean action.
      progress: called with the steps played.
    """
    env = RobotEnv(policy.spec.task, render=True, width=size, height=size)
    own_seed = episode_seed(seed, task, number)
    rng = np.random.default_rng(own_seed)
    state, goal = env.reset(task, own_seed)
    limit = min(time_limit or env.time_limit, env.time_limit)
    pictures, loops, success, carry = [env.render()], [], False, None
    for step in range(limit):
        decision = policy.act(GoalObservation(state, goal), halting=halting, carry=carry)
        carry = decision.carry
        action = add_noise(np.asarray(decision.action), deviation, rng)
        state, done, success = env.step(action)
        loops.append(int(decision.loops))
        pictures.append(env.render())
        progress(step + 1, limit)
        if done or success:
            break
    return EpisodePictures(title=env.task_name(task), success=success, loops=loops, pictures=pictures)


def write_gif(
    episode: EpisodePictures, most_loops: int, path: pathlib.Path, every: int = 2, milliseconds: int = 100
) -> None:
    """Write a film as a GIF that pauses on its last frame.

    Args:
      episode: the episode.
      most_loops: number of loops at which a bar has its full height.
      path: the file.
      every: steps from one frame to the next.
      milliseconds: duration of a frame. Loops before the last one of a decision take a third of it.
    """
    times = [
        (step, loop)
        for step in range(0, len(episode.loops), every)
        for loop in (range(1, episode.loops[step] + 1) if episode.choices else [episode.loops[step]])
    ]
    frames = [_frame(episode, *time, most_loops) for time in [*times, (len(episode.loops), 0)]]
    path.parent.mkdir(parents=True, exist_ok=True)
    durations = [milliseconds // (1 if loop == episode.loops[step] else 3) for step, loop in times]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[*durations, 1500], loop=0)


def _frame(episode: EpisodePictures, step: int, loop: int, most_loops: int) -> Image.Image:
    """Draw a picture, the loops of all decisions so far below it, and the choices of this one next to it."""
    picture = Image.fromarray(episode.pictures[step])
    width, height = picture.size
    sidebar = _SIDEBAR if episode.choices else 0
    frame = Image.new("RGB", (width + sidebar, height + _FOOTER), _PAPER)
    frame.paste(picture, (0, 0))
    draw, font = ImageDraw.Draw(frame), ImageFont.load_default(13)
    over = step == len(episode.loops)
    ending = "solved" if episode.success else "not solved"
    text = f"{episode.title}: {ending} after {step} steps" if over else f"{episode.title}, step {step}"
    draw.text((_MARGIN, height + 6), text, _INK, font)
    if not over:
        text = f"loop {loop} of at most {most_loops}" if sidebar else f"{loop} of {most_loops} loops"
        draw.text((_MARGIN, height + 6 + _LINE), text, _BAR, font)
    if sidebar and not over:
        _draw_choices(draw, font, episode.choices[step], loop, width + _MARGIN)
    # One column of pixels may stand for several decisions: it shows the deepest of them.
    bottom, tallest, room = frame.height - 8, _FOOTER - 2 * _LINE - 20, frame.width - 2 * _MARGIN
    draw.line([(_MARGIN, bottom), (frame.width - _MARGIN, bottom)], _FAINT)
    loops = [*episode.loops[:step], *([] if over else [loop])]
    columns = np.array_split(np.arange(len(episode.loops)), min(room, len(episode.loops)))
    for i, column in enumerate(columns):
        if shown := [loops[decision] for decision in column if decision < len(loops)]:
            left, right = (_MARGIN + round(k * room / len(columns)) for k in (i, i + 1))
            top = bottom - round(tallest * max(shown) / most_loops)
            colour = _BAR if not over and step in column else _INK
            draw.rectangle([left, top, max(left, right - 2), bottom - 1], colour)
    return frame


def _draw_choices(draw: Any, font: Any, choices: Choices, loop: int, left: int) -> None:
    """Draw a bar for the probability of each choice after a loop."""
    probabilities = [after[loop - 1] for after in choices.probabilities]
    for row, (name, probability) in enumerate(zip(choices.names, probabilities, strict=True)):
        top, colour = _MARGIN + row * 2 * _LINE, _BAR if probability == max(probabilities) else _INK
        draw.text((left, top), f"{name}  {probability:.0%}", colour, font)
        right = left + round((_SIDEBAR - 2 * _MARGIN) * probability)
        draw.rectangle([left, top + _LINE, max(left, right), top + _LINE + 6], colour)
