"""Replays: an episode of a puzzle, loop by loop, as an HTML page that needs no other file, and as a GIF."""

import base64
import functools
import hashlib
import html
import json
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from looped_actor.algorithms import make_policy, to_streaming
from looped_actor.analysis.probes import ProbeSet, probe_logits, read_probes
from looped_actor.evaluation.levels import Record, play_levels
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import GAMES, game_of
from looped_actor.puzzles.drawing import Drawing, Shape, to_pixels, to_svg
from looped_actor.puzzles.grid import Board, Direction, Position
from looped_actor.puzzles.pictures import MARGIN, draw
from looped_actor.robots.film import Choices, EpisodePictures, write_gif
from looped_actor.runs.puzzle import find_test_levels
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

MAX_CHOICES = 6
"""Actions that are shown of each state: those with the highest probability at some loop."""
MAX_PUSH = 4
"""Later pushes are not drawn: their arrows would cover each other."""
_ACTION, _PLAN = "#1c1c1c", "#7b3fa0"


class RecordedDecision(NamedTuple):
    """One decision, loop by loop."""

    board: Board
    action: int
    probabilities: Float[np.ndarray, "l a"]
    """Probability of each action, after each loop. Nets that do not loop have one row."""
    value: float | None
    """None if no value was learned."""
    plan: tuple[tuple[int, int], ...] = ()
    """Pushes that probes read from the last latent, as (push, class); push 1 is the next."""

    @property
    def loops(self) -> int:
        return len(self.probabilities)


class Replay(NamedTuple):
    """A recorded episode."""

    title: str
    policy: str
    """Arm and algorithm."""
    steps: list[RecordedDecision]
    end: Board
    max_loops: int

    @property
    def success(self) -> bool:
        return self.end.solved


def record_episode(
    policy: Policy,
    level: int,
    *,
    levels: pathlib.Path | None = None,
    probes: pathlib.Path | None = None,
) -> Replay:
    """Play one level of a puzzle with the most probable actions, and record every loop of every decision.

    Args:
      policy: the policy.
      level: number of the level in its bank.
      levels: bank of levels. Default: the test levels of the run.
      probes: file of probes that `analyze probes` has written: also record the pushes that they read.
    """
    config = policy.config
    if config.task not in GAMES:
        raise UserError(f"{policy.folder} is of {config.task}: only episodes of puzzles can be replayed")
    game, bank = GAMES[config.task], find_test_levels(policy, levels)
    board, shape = bank.board(level), (bank.info.height, bank.info.width)
    probe_set = None if probes is None else _matching_probes(probes, policy, board)
    env: Any = game.environment(bank.on_device(level + 1), config.time_limit)
    play = functools.partial(
        play_levels,
        env=env,
        policy=functools.partial(make_policy(policy.spec.definition, policy.weights), record=True),
        levels=jnp.array([level]),
        most_loops=policy.spec.max_loops,
        record=_recorder(policy, probe_set),
        carry_latent=policy.carry_latent,
    )
    recorded, loops, mask = jax.device_get(jax.jit(play)().trace)
    cells, actions, probabilities, values, plans = recorded
    steps = [
        RecordedDecision(
            board=game.board.from_cells(cells[step, 0].reshape(shape)),
            action=int(actions[step, 0]),
            probabilities=probabilities[step, 0, : int(loops[step, 0])],
            value=float(values[step, 0]) if config.learner == "PPO" else None,  # imitation learns no value
            plan=_near_pushes(probe_set, plans[step, 0]),
        )
        for step in np.flatnonzero(mask[:, 0])
    ]
    name, source = f"{config.trained} by {config.learner}", pathlib.Path(bank.name).stem
    return Replay(
        title=f"{policy.folder.resolve().name}: {name}, level {level} of {source}",
        policy=name,
        steps=steps,
        end=game.step(steps[-1].board, steps[-1].action)[0],
        max_loops=1 if policy.halting is None else policy.halting.max_loops,
    )


def _recorder(policy: Policy, probes: ProbeSet | None) -> Record:
    """Return a function that records cells, actions, probabilities after each loop, values and plans."""
    parts = to_streaming(policy.spec.definition, policy.weights)

    def record(state: Any, output: Any) -> tuple[Any, ...]:
        if parts is None:
            probabilities = jnp.exp(output.distribution.log_probabilities)[:, None]
        else:
            decode = parts.decode
            logs = jax.vmap(lambda z: decode(z).distribution.log_probabilities)(output.loop.latents)
            probabilities = jnp.exp(jnp.moveaxis(logs, 0, 1))
        plan = jnp.zeros((1, 0), jnp.int32)
        if probes is not None:
            # The first seed of the probes of the deepest loop.
            deepest = jax.tree.map(lambda array: jnp.asarray(array[-1, :, 0]), probes.probes)
            plan = jax.vmap(lambda p: jnp.argmax(probe_logits(p, output.loop.latent)[0]))(deepest)[None]
        return state.cells, output.distribution.mode(), probabilities, output.value, plan

    return record


def _near_pushes(probes: ProbeSet | None, plan: np.ndarray) -> tuple[tuple[int, int], ...]:
    if probes is None:
        return ()
    pushes = zip(probes.pushes, plan.tolist(), strict=True)
    return tuple((push, kind) for push, kind in pushes if push <= MAX_PUSH)


def _matching_probes(path: pathlib.Path, policy: Policy, board: Any) -> ProbeSet:
    """Read probes, and raise an error if they cannot read this policy's latents on this board."""
    probes, config = read_probes(path), policy.config
    width = probes.probes.query.shape[-2]
    if policy.halting is None or width != config.arm.core.width:
        raise UserError(
            f"{path}: these probes read latents of width {width}; this policy has others, or none"
        )
    if config.task != "boxoban" or len(board.boxes) != probes.boxes:
        raise UserError(f"{path}: these probes read pushes of {probes.boxes} boxes; this level has others")
    return probes


# The page and the GIF


def write_html(replay: Replay, path: pathlib.Path) -> None:
    """Write a replay as one HTML page. It loads nothing, and its content security policy forbids loading."""
    template = (pathlib.Path(__file__).parent / "replay.html").read_text()
    boards = [_number_pushes(to_svg(_draw_decision(decision)), decision) for decision in replay.steps]
    data = {
        "title": replay.title,
        "maxLoops": replay.max_loops,
        "success": replay.success,
        "planned": any(decision.plan for decision in replay.steps),
        "boards": [*boards, _number_pushes(to_svg(draw(replay.end)), None)],
        "steps": [_to_json(decision) for decision in replay.steps],
    }
    # No character of the data can begin a tag, and placeholders in inserted text are not replaced again.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    values = {"TITLE": html.escape(replay.title), "DATA": text}
    values |= {name: _content_hash(template, name.lower()) for name in ("SCRIPT", "STYLE")}
    page = re.sub(r"{{(\w+)}}", lambda placeholder: values[placeholder[1]], template)
    write_whole(path, page.encode())


def _content_hash(template: str, tag: str) -> str:
    """Return the hash by which the content security policy admits the page's own script or style."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def write_replay_gif(replay: Replay, path: pathlib.Path, cell: int = 40) -> None:
    """Write a replay as a GIF with a frame for every loop; `cell` is the side of a cell in pixels."""
    drawings = [*map(_draw_decision, replay.steps), draw(replay.end)]
    episode = EpisodePictures(
        title=replay.policy,
        success=replay.success,
        loops=[decision.loops for decision in replay.steps],
        pictures=[to_pixels(drawing, cell) for drawing in drawings],
        choices=[_spell_out(_to_json(decision)) for decision in replay.steps],
    )
    write_gif(episode, replay.max_loops, path, every=1, milliseconds=600)


def _spell_out(decision: dict[str, Any]) -> Choices:
    """Return the choices of a decision with words for arrows, which the font of pictures does not have."""
    words = {direction.arrow: direction.name.lower() for direction in Direction}
    names = [re.sub("[↑→↓←]", lambda arrow: words[arrow[0]], name) for name in decision["names"]]
    return Choices(names, decision["chances"])


def _to_json(decision: RecordedDecision) -> dict[str, Any]:
    """Return a decision as the page reads it."""
    groups = game_of(decision.board).name_actions(decision.board)
    columns = [decision.probabilities[:, list(group.actions)].sum(axis=1) for group in groups]
    likely = sorted(range(len(groups)), key=lambda i: -columns[i].max())[:MAX_CHOICES]
    return {
        "loops": decision.loops,
        "value": None if decision.value is None else round(decision.value, 2),
        "action": next(group.name for group in groups if decision.action in group.actions),
        "names": [groups[i].name for i in sorted(likely)],
        "chances": [[round(float(p), 4) for p in columns[i]] for i in sorted(likely)],
    }


def _draw_decision(decision: RecordedDecision) -> Drawing:
    """Return the board, with the action and the plan as arrows."""
    board = decision.board
    drawing, shapes = draw(board), []
    for place, direction, _ in _plan_arrows(decision):
        shapes.append(_arrow(place, direction, _PLAN, length=0.52, thickness=0.11))
    located = game_of(board).locate_action(board, decision.action)
    if located is not None:
        shapes.append(_arrow(*located, _ACTION, length=0.42, thickness=0.07))
    return drawing._replace(shapes=[*drawing.shapes, *shapes])


def _plan_arrows(decision: RecordedDecision) -> list[tuple[Position, Direction, list[int]]]:
    """Return boxes and directions of the plan, each with the numbers of its pushes."""
    if not isinstance(decision.board, BoxobanBoard):
        return []
    boxes, pushes = sorted(decision.board.boxes), dict[tuple[int, int], list[int]]()
    for push, kind in decision.plan:
        pushes.setdefault(divmod(kind, 4), []).append(push)
    return [(boxes[box], Direction(direction), numbers) for (box, direction), numbers in pushes.items()]


def _arrow(place: Position, direction: Direction, fill: str, length: float, thickness: float) -> Shape:
    """Return an arrow from the middle of a cell towards its neighbour."""
    row, column = place
    x, y = column + 0.5 + MARGIN, row + 0.5 + MARGIN
    dr, dc = direction.delta
    head = 0.22
    outline = (
        (0.12, -thickness),
        (length, -thickness),
        (length, -head),
        (length + 0.28, 0.0),
        (length, head),
        (length, thickness),
        (0.12, thickness),
    )
    return Shape(fill, points=tuple((x + a * dc - b * dr, y + a * dr + b * dc) for a, b in outline))


def _number_pushes(svg: str, decision: RecordedDecision | None) -> str:
    """Write the numbers of pushes on their arrows, and remove the size of the drawing: the page sets it."""
    texts = []
    for (row, column), direction, pushes in _plan_arrows(decision) if decision else ():
        dr, dc = direction.delta
        x, y = column + 0.85 + 0.42 * dc, row + 0.85 + 0.42 * dr + 0.08
        label = ",".join(map(str, pushes))
        style = 'font-size="0.24" font-family="sans-serif" text-anchor="middle" fill="#fff"'
        texts.append(f'<text x="{x:.3g}" y="{y:.3g}" {style}>{label}</text>')
    start = svg.index("<svg")
    end = svg.index(">", start)
    box = svg[svg.index("viewBox", start) : end]
    return f"<svg {box}>" + svg[end + 1 :].replace("</svg>", "".join(texts) + "</svg>").strip()
