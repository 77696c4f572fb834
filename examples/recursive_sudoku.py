"""A small recursive model in the style of HRM and TRM solves 6x6 Sudokus, and loops longer on harder ones.

python examples/recursive_sudoku.py                  # about ten minutes on two cores
python examples/recursive_sudoku.py --minutes 1      # a quick look

`run_loop` needs two functions: `step`, one loop of the model, and `readout`, the distribution by which it
halts. Training uses `Packed`, which sorts a batch by depth; evaluation uses `Streaming`, in which puzzles
that have converged leave the batch early. The same weights then run at a fixed depth, for comparison.
"""

import argparse
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from looped_actor import Categorical, FixedLoops, Packed, PolicyKL, StreamablePolicy, Streaming, run_loop
from looped_actor.loop.state import LoopProblem

SIDE, BOX_ROWS, BOX_COLUMNS = 6, 2, 3
CELLS, WIDTH, BATCH = SIDE * SIDE, 64, 128
HALTING = PolicyKL(threshold=1e-3, min_loops=2, max_loops=16)


def make_units() -> np.ndarray:
    """Return, for each of rows, columns and boxes, the cells that share one: shape [3, 36, 36]."""
    row, column = np.divmod(np.arange(CELLS), SIDE)
    box = row // BOX_ROWS * (SIDE // BOX_COLUMNS) + column // BOX_COLUMNS
    same = [unit[:, None] == unit[None, :] for unit in (row, column, box)]
    return np.stack(same).astype(np.float32) - np.eye(CELLS, dtype=np.float32)


UNITS = make_units()
PEERS = UNITS.sum(axis=0) > 0


def list_options(board: np.ndarray, cells: np.ndarray) -> list[set[int]]:
    """Return the digits that no peer of a cell has, for each of some cells."""
    return [set(range(1, SIDE + 1)) - set(board[PEERS[cell]]) for cell in cells]


def find_solutions(board: np.ndarray, most: int) -> list[np.ndarray]:
    """Return up to `most` solutions of a board, in which 0 is an empty cell."""
    found, board = [], board.copy()

    def search() -> None:
        empty = np.flatnonzero(board == 0)
        if len(empty) == 0:
            found.append(board.copy())
            return
        options = list_options(board, empty)
        number = min(range(len(empty)), key=lambda n: len(options[n]))
        for digit in options[number]:
            board[empty[number]] = digit
            search()
            board[empty[number]] = 0
            if len(found) >= most:
                return

    search()
    return found


def shuffle(boards: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return equivalent boards, with other digits and orders of lines; the same for all boards of a row."""
    out = np.empty_like(boards)
    for number, some in enumerate(boards.reshape(len(boards), -1, SIDE, SIDE)):
        digits = np.concatenate([[0], 1 + rng.permutation(SIDE)])
        rows, columns = shuffle_lines(BOX_ROWS, rng), shuffle_lines(BOX_COLUMNS, rng)
        out[number] = digits[some[:, rows][:, :, columns]].reshape(boards.shape[1:])
    return out


def shuffle_lines(box: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order of lines that keeps those of a box together."""
    return np.concatenate([box * band + rng.permutation(box) for band in rng.permutation(SIDE // box)])


def make_puzzles(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return puzzles with one solution each, shape [count, 36]; some have more clues than they need."""
    row, column = np.divmod(np.arange(CELLS), SIDE)
    pattern = (row % BOX_ROWS * BOX_COLUMNS + row // BOX_ROWS + column) % SIDE + 1
    puzzles = []
    for board in shuffle(np.repeat(pattern[None], count, axis=0), rng):
        clues = rng.integers(8, 24)
        for cell in rng.permutation(CELLS):
            if (board > 0).sum() <= clues:
                break
            digit, board[cell] = board[cell], 0
            if len(find_solutions(board, 2)) > 1:
                board[cell] = digit
        puzzles.append(board)
    return np.stack(puzzles)


def count_rounds(puzzle: np.ndarray) -> int:
    """Return the rounds of filling in all cells with one option left; 9 if that does not solve the puzzle."""
    board = puzzle.copy()
    for rounds in range(9):
        empty = np.flatnonzero(board == 0)
        if len(empty) == 0:
            return rounds
        options = list_options(board, empty)
        forced = [(cell, *one) for cell, one in zip(empty, options, strict=True) if len(one) == 1]
        if not forced:
            return 9
        for cell, digit in forced:
            board[cell] = digit
    return 9


class Cells(NamedTuple):
    """The distribution of all cells of a board; `run_loop` halts when it stops changing."""

    each: Categorical
    """Digits of each cell."""

    def kl(self, other: "Cells") -> jax.Array:
        """Return the largest KL(self || other) of a cell, shape [B]."""
        return self.each.kl(other.each).max(axis=-1)

    def mode(self) -> jax.Array:
        """Return the most probable digit of each cell, shape [B, 36]."""
        return self.each.mode() + 1

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probability of a board, shape [B]."""
        return self.each.log_prob(action - 1).sum(axis=-1)

    def entropy(self) -> jax.Array:
        """Return the sum of the entropies of all cells, shape [B]."""
        return self.each.entropy().sum(axis=-1)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw a board, shape [B, 36]."""
        return self.each.sample(key) + 1


def init_weights(key: jax.Array) -> dict[str, jax.Array]:
    """Draw the weights."""
    sizes = {
        "digit": (SIDE + 1, WIDTH),
        "peers": (4 * WIDTH, WIDTH),
        "up": (2 * WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
        "head": (WIDTH, SIDE),
    }
    keys = jax.random.split(key, len(sizes))
    return {
        name: jax.random.normal(k, size) * size[0] ** -0.5
        for k, (name, size) in zip(keys, sizes.items(), strict=True)
    }


def normalize(z: jax.Array) -> jax.Array:
    """Return the vectors of a latent with a root mean square of one."""
    return z * jax.lax.rsqrt(jnp.square(z).mean(axis=-1, keepdims=True) + 1e-6)


def step(weights: dict[str, jax.Array], z: jax.Array, x: jax.Array) -> jax.Array:
    """Apply the model once: each cell reads its row, column and box. Return the latent, shape [B, 36, 64]."""
    heard = jnp.einsum("ucd,bdw->bcuw", UNITS, z).reshape(*z.shape[:2], 3 * WIDTH) / 5
    heard = jax.nn.silu(jnp.concatenate([z, heard], axis=-1) @ weights["peers"])
    hidden = jax.nn.silu(jnp.concatenate([heard, weights["digit"][x]], axis=-1) @ weights["up"])
    return normalize(z + hidden @ weights["down"])


def readout(weights: dict[str, jax.Array], z: jax.Array, x: jax.Array) -> Cells:
    """Return the digits of all cells; clues are certain."""
    logits = z @ weights["head"]
    clue = jnp.where(jax.nn.one_hot(x - 1, SIDE, dtype=bool), 20.0, 0.0)
    return Cells(Categorical(jnp.where(x[..., None] > 0, clue, logits)))


def first_latent(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the latent before the first loop: the clues."""
    return normalize(weights["digit"][x])


def loss(
    weights: dict[str, jax.Array], x: jax.Array, solution: jax.Array, halting
) -> tuple[jax.Array, tuple]:
    """Return the cross-entropy of the solution after the last loop, and loops and share of solved puzzles."""
    z0 = first_latent(weights, x)
    result = run_loop(
        partial(step, weights), partial(readout, weights), z0, x, halting=halting, execution=Packed()
    )
    board = readout(weights, result.latent, x)
    return -board.log_prob(solution).mean(), (
        result.loops.mean(),
        (board.mode() == solution).all(axis=-1).mean(),
    )


def train(
    puzzles: np.ndarray, solutions: np.ndarray, minutes: float, seed: int, halting
) -> dict[str, jax.Array]:
    """Train on random equivalents of the puzzles for some minutes."""
    weights = init_weights(jax.random.key(seed))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3, b2=0.95, weight_decay=0.1))
    state, rng = optimizer.init(weights), np.random.default_rng(seed)

    @jax.jit
    def update(weights, state, x, solution):
        (value, facts), gradient = jax.value_and_grad(loss, has_aux=True)(weights, x, solution, halting)
        change, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, change), state, (value, *facts)

    begin, number = time.monotonic(), 0
    while time.monotonic() < begin + 60 * minutes:
        rows = rng.integers(len(puzzles), size=BATCH)
        both = shuffle(np.stack([puzzles[rows], solutions[rows]], axis=1), rng)
        weights, state, facts = update(weights, state, both[:, 0], both[:, 1])
        number += 1
        if number % 200 == 0:
            value, loops, solved = map(float, facts)
            passed = (time.monotonic() - begin) / 60
            facts = f"loss {value:.3f}  solved {solved:.0%}  loops {loops:.1f}"
            print(f"{passed:4.1f} min  update {number}  {facts}")
    return weights


def solve(weights: dict[str, jax.Array], x: jax.Array, halting) -> tuple[jax.Array, jax.Array]:
    """Return the boards and the loops of all puzzles; puzzles that converge leave the batch early."""
    problem = LoopProblem(partial(step, weights), partial(readout, weights), halting)
    policy = StreamablePolicy(
        embed=lambda x: x,
        initial_latent=partial(first_latent, weights),
        problem=problem,
        decode=partial(decode, weights),
    )
    output = Streaming(slots=BATCH).decide(policy, x).output
    board = jnp.where(x > 0, x, output.decision)
    return board, output.loops


def decode(weights: dict[str, jax.Array], z: jax.Array) -> jax.Array:
    """Return the most probable digits of a latent."""
    return jnp.argmax(z @ weights["head"], axis=-1) + 1


def evaluate(weights: dict[str, jax.Array], puzzles: np.ndarray, solutions: np.ndarray) -> None:
    """Print accuracy, loops by difficulty, and the time relative to a fixed depth."""
    x, rounds = jnp.asarray(puzzles), np.array([count_rounds(puzzle) for puzzle in puzzles])
    rules = {
        "until it converges": HALTING,
        f"always {HALTING.max_loops} loops": FixedLoops(HALTING.max_loops),
    }
    solvers = {name: jax.jit(partial(solve, halting=rule)) for name, rule in rules.items()}
    seconds, results = dict.fromkeys(solvers, np.inf), {}
    for turn in range(6):  # in turns; the first compiles
        for name, solver in solvers.items():
            begin = time.perf_counter()
            results[name] = jax.block_until_ready(solver(weights, x))
            if turn:
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
    for name, result in results.items():
        board, loops = jax.device_get(result)
        solved = (board == solutions).all(axis=-1)
        print(f"{name}: solved {solved.mean():.1%}, loops {loops.mean():.2f}, {seconds[name]:.3f} s")
        if name == "until it converges":
            for difficulty in np.unique(rounds):
                rows = rounds == difficulty
                label = "needs more than single options" if difficulty == 9 else f"{difficulty} rounds"
                facts = f"solved {solved[rows].mean():.0%}, loops {loops[rows].mean():.1f}"
                print(f"  {label}: {rows.sum()} puzzles, {facts}")
    adaptive, fixed = seconds.values()
    print(f"time relative to the fixed depth: {adaptive / fixed:.2f}")


def main() -> None:
    """Make puzzles, train, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="time of training")
    parser.add_argument("--puzzles", type=int, default=3000, help="training puzzles")
    parser.add_argument("--test", type=int, default=1000, help="test puzzles")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"making {options.puzzles + options.test} puzzles ...")
    puzzles = make_puzzles(options.puzzles + options.test, rng)
    solutions = np.stack([find_solutions(puzzle, 1)[0] for puzzle in puzzles])
    kept, test = slice(options.test, None), slice(options.test)
    weights = train(puzzles[kept], solutions[kept], options.minutes, options.seed, HALTING)
    evaluate(weights, puzzles[test], solutions[test])


if __name__ == "__main__":
    main()
