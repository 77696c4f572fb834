"""Default microbatch and slots by device.

Results never depend on it, beyond rounding; time does. What suits a kind of device is a number of *scalars*
in latents, so that one rule holds for all nets and boards. `looped-actor plan --time` times the alternatives
on the hardware at hand.
"""

from typing import Any, NamedTuple

import jax


class LatentBudget(NamedTuple):
    """Scalars of latents that a kind of device computes together best."""

    microbatch: int
    """Latent scalars of one gradient's microbatch."""
    slots: int
    """Latent scalars of a stream's slots."""
    min_microbatch: int = 1
    """Examples, however large their latents are."""
    max_slots: int = 2**30


CPU = LatentBudget(microbatch=16_000, slots=100_000, min_microbatch=2, max_slots=16)
"""Measured on two cores: a loop over this many stays in a core's cache. For latents of 101 x 128 scalars,
microbatches of 2 were the fastest in most runs and 4 in others; for 43 x 32, microbatches of 8, and 16 by 7%
slower. More slots are no faster, and more of them stand empty when a stream drains."""
TPU = LatentBudget(microbatch=414_000, slots=1_655_000)
"""Microbatches of 32 and 128 slots at 101 x 128 scalars, by the compiler's estimates for v5e: larger ones do
not fit the fast memory, and smaller ones do not fill the matrix units. See docs/accelerators.md."""
GPU = LatentBudget(microbatch=4_000_000, slots=16_000_000)
"""Enough to be worth a kernel launch, by the estimates for one H100. See docs/accelerators.md."""
BUDGETS = {"cpu": CPU, "tpu": TPU, "gpu": GPU, "cuda": GPU, "rocm": GPU}


def target_device() -> Any:
    """Return a device that the program being traced will run on: of its mesh, or else JAX's default."""
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def latent_budget(device: Any = None) -> LatentBudget:
    """Return the budget of a device. Default: the one that the program being traced will run on."""
    return BUDGETS.get((device or target_device()).platform, GPU)


def default_microbatch(latent_size: int, device: Any = None) -> int:
    """Return how many examples of `latent_size` scalars to take a gradient of together."""
    budget = latent_budget(device)
    return max(budget.min_microbatch, round(budget.microbatch / latent_size))


def default_slots(latent_size: int, device: Any = None) -> int:
    """Return how many states of `latent_size` scalars to stream together."""
    budget = latent_budget(device)
    return max(1, min(budget.max_slots, round(budget.slots / latent_size)))
