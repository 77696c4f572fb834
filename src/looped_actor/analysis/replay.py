"""An episode of a puzzle, thought by thought: as one HTML file that needs nothing else, and as a GIF."""

import base64
import functools
import hashlib
import html
import json
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from looped_actor.algorithms import as_open_loop
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.analysis.probes import Probe, ProbeSet, probe_logits, read_probes
from looped_actor.evaluation.levels import LevelEnvironment, play_levels
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.boxoban.plans import NONE
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import GAMES, Board
from looped_actor.puzzles.grid import Direction, step_from
from looped_actor.puzzles.pictures import Drawing, Shape, draw, to_pixels, to_svg
from looped_actor.robots.film import Choices, EpisodePictures, write_gif
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

ARROWS = {Direction.UP: "↑", Direction.RIGHT: "→", Direction.DOWN: "↓", Direction.LEFT: "←"}
MOST_CHOICES = 6
"""How many actions of a state are shown: those with the highest probability at some loop."""
FARTHEST_PUSH = 4
"""Pushes further ahead than this are not drawn: they would cover each other."""
_ACTION, _PLAN = "#1c1c1c", "#7b3fa0"


class Thoughts(NamedTuple):
    """One decision, loop by loop."""

    board: Board
    action: int
    loops: int
    probabilities: Float[np.ndarray, "l a"]
    """Probability of each action, after each loop."""
    value: float | None
    """None where no value was learned."""
    plan: tuple[tuple[int, int], ...] = ()
    """What a probe reads of the pushes to come: (which push, its class), the next one first."""


class Replay(NamedTuple):
    """An episode."""

    title: str
    policy: str
    """What it is and what it was made by, in few words."""
    steps: list[Thoughts]
    end: Board
    max_loops: int

    @property
    def success(self) -> bool:
        """Whether it was solved."""
        return self.end.solved


def record_episode(
    policy: Policy,
    level: int,
    *,
    levels: pathlib.Path | None = None,
    probes: pathlib.Path | None = None,
) -> Replay:
    """Play one level of a puzzle with the most probable actions, and look at every loop of every decision.

    Args:
      policy: whose thoughts are shown.
      level: which one of the bank.
      levels: the bank. Default: the one held out in training.
      probes: as `analyse probes` has written them: what they read of the plan is shown too.
    """
    run = policy.run.puzzle
    config, bank = run.config, run.bank_to_play(levels)
    board, shape = bank.board(level), (bank.info.height, bank.info.width)  # or it says what is wrong
    game, read = GAMES[config.task], None if probes is None else _fitting_probes(probes, policy, board)
    steps = _steps(run.environment(bank, level + 1), level, policy, read)
    thoughts = [
        Thoughts(
            game.from_cells(cells.reshape(shape)),
            int(action),
            int(loops),
            probabilities[: int(loops)],
            float(value) if config.learner == "ppo" else None,  # imitation learns no value
            _near(read, plan),
        )
        for cells, action, loops, probabilities, value, plan in steps
    ]
    name, source = f"{config.arm} by {config.algorithm}", pathlib.Path(bank.name).stem
    title = f"{policy.folder.resolve().name}: {name}, level {level} of {source}"
    return Replay(title, name, thoughts, _after(thoughts[-1]), run.net.max_loops)


def _steps(env: LevelEnvironment, level: int, policy: Policy, probes: ProbeSet | None) -> Iterator[tuple]:
    """Cells, action, loops, probabilities after each loop, value and plan, of every step."""
    loop: Any = as_open_loop(policy.run.definition, policy.weights)
    decide: Any = deciding(policy.run.definition, policy.weights)

    def look(state: Any, now: Any) -> tuple[Any, ...]:
        if loop is None:  # one look, and no loops to tell apart
            chances = jnp.exp(now.distribution.log_probabilities)[:, None]
        else:
            after = jax.vmap(lambda z: loop.decode(z).distribution.log_probabilities)(now.loop.latents)
            chances = jnp.exp(jnp.moveaxis(after, 0, 1))
        plan = jnp.zeros((1, 0), jnp.int32)
        if probes is not None:
            # Probes of the deepest place, of the first seed: a replay shows what could be read in the end.
            deepest = Probe(*(jnp.asarray(array[-1, :, 0]) for array in probes.probes))
            plan = jax.vmap(lambda p: jnp.argmax(probe_logits(p, now.loop.latent)[0]))(deepest)[None]
        return state.cells, now.distribution.mode(), now.loop.loops, chances, now.value, plan

    def record(observation: Any, **options: Any) -> Any:
        return decide(observation, record=True, **options)

    most = policy.run.net.max_loops
    playing = functools.partial(play_levels, env, record, jnp.array([level]), most, look, policy.starting)
    played = jax.jit(playing)()
    seen, _, taken = jax.device_get(played.trace)
    for step in np.flatnonzero(taken[:, 0]):
        yield tuple(array[step, 0] for array in seen)


def _after(thought: Thoughts) -> Board:
    """The board that an action leads to."""
    board, action = thought.board, thought.action
    if isinstance(board, BoxobanBoard):
        return board.move(Direction(action))
    return board.slide(divmod(action // 2, board.width), bool(action % 2))


def _near(probes: ProbeSet | None, plan: np.ndarray) -> tuple[tuple[int, int], ...]:
    read = zip(probes.pushes, plan.tolist(), strict=True) if probes else ()
    return tuple((push, kind) for push, kind in read if push <= FARTHEST_PUSH)


def _fitting_probes(path: pathlib.Path, policy: Policy, board: Any) -> ProbeSet:
    """Probes, if they can read this policy's latents on this board."""
    probes, config = read_probes(path), policy.config
    width = probes.probes.look.shape[-2]
    if policy.halting is None or width != config.core.width:
        raise UserError(f"{path}: probes of latents of width {width}; this policy has none of these")
    if config.task != "boxoban" or len(board.boxes) != probes.boxes:
        raise UserError(f"{path}: these probes read pushes of {probes.boxes} boxes; this level has others")
    return probes


def write_html(replay: Replay, path: pathlib.Path) -> None:
    """One file with everything in it. It loads nothing, and may load nothing."""
    template = (pathlib.Path(__file__).parent / "replay.html").read_text()
    boards = [_drawn(thought) for thought in replay.steps] + [draw(replay.end)]
    data = {
        "title": replay.title,
        "maxLoops": replay.max_loops,
        "success": replay.success,
        "planned": any(thought.plan for thought in replay.steps),
        "boards": [_with_digits(to_svg(d), t) for d, t in zip(boards, [*replay.steps, None], strict=True)],
        "steps": [_told(thought) for thought in replay.steps],
    }
    # No character of the data can begin a tag, and nothing that is put in is looked at for places again.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    put = {"TITLE": html.escape(replay.title), "DATA": text}
    put |= {name: _hash(template, name.lower()) for name in ("SCRIPT", "STYLE")}
    page = re.sub(r"{{(\w+)}}", lambda place: put[place[1]], template)
    write_whole(path, page.encode())


def _hash(template: str, tag: str) -> str:
    """By which the page's policy knows its own script and style: no other runs."""
    (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


def write_replay_gif(replay: Replay, path: pathlib.Path, cell: int = 40) -> None:
    """The same as a GIF: a frame for every loop."""
    boards = [_drawn(thought) for thought in replay.steps] + [draw(replay.end)]
    pictures = [to_pixels(board, cell) for board in boards]
    loops = [thought.loops for thought in replay.steps]
    choices = [_spelled(_told(thought)) for thought in replay.steps]
    episode = EpisodePictures(replay.policy, replay.success, loops, pictures, choices)
    write_gif(episode, replay.max_loops, path, every=1, milliseconds=600)


def _spelled(told: dict[str, Any]) -> Choices:
    """As a picture shows them: its font has no arrows."""
    words = {arrow: way.name.lower() for way, arrow in ARROWS.items()}
    return Choices([re.sub("[↑→↓←]", lambda m: words[m[0]], name) for name in told["names"]], told["chances"])


def _told(thought: Thoughts) -> dict[str, Any]:
    """A decision as what the page shows."""
    choices = _choices(thought)
    shown = sorted(choices, key=lambda choice: -choice[1].max())[:MOST_CHOICES]
    shown = [choice for choice in choices if any(choice is other for other in shown)]
    return {
        "loops": thought.loops,
        "value": None if thought.value is None else round(thought.value, 2),
        "action": next(name for name, _, actions in choices if thought.action in actions),
        "names": [name for name, _, _ in shown],
        "chances": [[round(float(c), 4) for c in column] for _, column, _ in shown],
    }


def _choices(thought: Thoughts) -> list[tuple[str, np.ndarray, tuple[int, ...]]]:
    """Names, probabilities after each loop, and actions: those that do the same are one choice."""
    board, chances = thought.board, thought.probabilities
    if isinstance(board, BoxobanBoard):
        return [(ARROWS[d], chances[:, int(d)], (int(d),)) for d in Direction]
    choices, named = [], set()
    for number, vehicle in enumerate(board.vehicles):
        cells = [row * board.width + column for row, column in vehicle.cells()]
        for forward in (False, True):
            actions = tuple(2 * cell + forward for cell in cells)
            named.update(actions)
            arrow = ARROWS[_way(vehicle.horizontal, forward)]
            kind = "car" if vehicle.length == 2 else "truck"
            who = "red" if number == 0 else f"{kind} {vehicle.row + 1},{vehicle.column + 1}"
            choices.append((f"{who} {arrow}", chances[:, list(actions)].sum(axis=1), actions))
    rest = tuple(action for action in range(chances.shape[1]) if action not in named)
    return [*choices, ("no car", chances[:, list(rest)].sum(axis=1), rest)]


def _way(horizontal: bool, forward: bool) -> Direction:
    if horizontal:
        return Direction.RIGHT if forward else Direction.LEFT
    return Direction.DOWN if forward else Direction.UP


def _drawn(thought: Thoughts) -> Drawing:
    """The board, with the action and the plan as arrows."""
    drawing, margin = draw(thought.board), 0.35
    shapes = []
    for place, direction, _ in _plan_arrows(thought):
        shapes.append(_arrow(place, direction, _PLAN, margin, long=0.52, thick=0.11))
    acted = _acted(thought)
    if acted is not None:
        shapes.append(_arrow(*acted, _ACTION, margin, long=0.42, thick=0.07))
    return drawing._replace(shapes=[*drawing.shapes, *shapes])


def _acted(thought: Thoughts) -> tuple[tuple[int, int], Direction] | None:
    board = thought.board
    if isinstance(board, BoxobanBoard):
        return board.player, Direction(thought.action)
    cell = divmod(thought.action // 2, board.width)
    for vehicle in board.vehicles:
        if cell in vehicle.cells():
            return cell, _way(vehicle.horizontal, bool(thought.action % 2))
    return None


def _plan_arrows(thought: Thoughts) -> list[tuple[tuple[int, int], Direction, list[int]]]:
    """Boxes, directions, and which of the pushes to come are read there."""
    if not isinstance(thought.board, BoxobanBoard):
        return []
    boxes, found = sorted(thought.board.boxes), dict[tuple[int, int], list[int]]()
    for push, read in thought.plan:
        if read != NONE and read // 4 < len(boxes):
            found.setdefault((read // 4, read % 4), []).append(push)
    return [(boxes[box], Direction(way), pushes) for (box, way), pushes in found.items()]


def _arrow(
    place: tuple[int, int], direction: Direction, fill: str, margin: float, long: float, thick: float
) -> Shape:
    """A polygon from the middle of a cell towards its neighbour."""
    row, column = place
    x, y = column + 0.5 + margin, row + 0.5 + margin
    dr, dc = step_from((0, 0), direction)
    head = 0.22
    outline: Sequence[tuple[float, float]] = (
        (0.12, -thick),
        (long, -thick),
        (long, -head),
        (long + 0.28, 0.0),
        (long, head),
        (long, thick),
        (0.12, thick),
    )
    return Shape(fill, points=tuple((x + a * dc - b * dr, y + a * dr + b * dc) for a, b in outline))


def _with_digits(svg: str, thought: Thoughts | None) -> str:
    """The numbers of the pushes on their arrows; and no size of its own, so that the page decides."""
    texts = []
    for (row, column), direction, pushes in _plan_arrows(thought) if thought else ():
        dr, dc = step_from((0, 0), direction)
        x, y = column + 0.85 + 0.42 * dc, row + 0.85 + 0.42 * dr + 0.08
        label = ",".join(map(str, pushes))
        style = 'font-size="0.24" font-family="sans-serif" text-anchor="middle" fill="#fff"'
        texts.append(f'<text x="{x:.3g}" y="{y:.3g}" {style}>{label}</text>')
    start = svg.index("<svg")
    end = svg.index(">", start)
    box = svg[svg.index("viewBox", start) : end]
    return f"<svg {box}>" + svg[end + 1 :].replace("</svg>", "".join(texts) + "</svg>").strip()
