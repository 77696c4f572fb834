"""Chips to plan for: their rates, and how to compile for them when they are not attached."""

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from looped_actor.training.sharding import make_mesh
from looped_actor.utils.checks import brief, shown
from looped_actor.utils.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """Rates of a chip by its maker's data sheet, and latencies that are assumed."""

    memory: float
    """Bytes of main memory."""
    bandwidth: float
    """Bytes per second of main memory."""
    peak: float
    """FLOPs per second of matrix products of float32 inputs, at JAX's default precision."""
    link: float
    """Bytes per second that a chip exchanges with the others."""
    clock: float | None = None
    """Cycles per second. None: the compiler estimates no cycles, and a kernel takes its roofline."""
    kernel_latency: float = 0.0
    """Minimum seconds of a kernel. Assumed."""
    loop_latency: float = 0.0
    """Seconds per pass to decide whether a data-dependent loop continues. Assumed."""
    collective_latency: float = 10e-6
    """Minimum seconds of an exchange. Assumed."""


CHIPS = {
    "v5e": Chip(memory=16 * GIB, bandwidth=819e9, peak=197e12, link=200e9, clock=1.5e9),
    "v5p": Chip(memory=95 * GIB, bandwidth=2765e9, peak=459e12, link=600e9, clock=1.75e9),
    "v6e": Chip(memory=32 * GIB, bandwidth=1640e9, peak=918e12, link=400e9, clock=1.75e9),
    # float32 products are in TF32, JAX's default there. A kernel takes two microseconds, and to read back
    # whether a loop continues takes ten.
    "h100": Chip(
        memory=80e9,
        bandwidth=3352e9,
        peak=494e12,
        link=450e9,
        kernel_latency=2e-6,
        loop_latency=10e-6,
    ),
}

_TPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",  # the metadata server of a TPU machine, which does not exist here
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84929347584
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Topology:
    """Chips of one kind in a grid: `v5e:16x16`, `h100:8`."""

    kind: str
    sides: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Return the topology of that name. A kind alone is one chip."""
        kind, colon, sides = text.partition(":")
        found = re.fullmatch(r"\d{1,4}(x\d{1,4}){0,2}", sides if colon else "1")
        if kind not in CHIPS or found is None or "0" in sides.split("x"):
            kinds = ", ".join(CHIPS)
            raise UserError(
                f"topology {shown(text)}: give KIND:SIDES with a kind of {kinds}, as v5e:16x16, v5p:2x2x1 "
                "or h100:8"
            )
        return cls(kind, tuple(map(int, (sides or "1").split("x"))))

    @property
    def name(self) -> str:
        """Name, as `parse` reads it."""
        return f"{self.kind}:{'x'.join(map(str, self.sides))}"

    @property
    def chip(self) -> Chip:
        """Rates of each of its chips."""
        return CHIPS[self.kind]

    @property
    def size(self) -> int:
        """Number of chips."""
        return math.prod(self.sides)

    def compile_only_mesh(self) -> Mesh:
        """Return the chips as devices to compile for, and switch JAX to the CPU for the whole process."""
        jax.config.update("jax_platforms", "cpu")  # or JAX would look for attached chips
        jax.config.update("jax_traceback_in_locations_limit", 0)  # libtpu 0.0.42 can hang on long ones
        options: dict[str, Any] = {}
        if self.kind == "h100":
            _require("jax_cuda12_plugin", "jax-cuda12-plugin jax-cuda12-pjrt")
            platform, name = "cuda", "h100"
            options = {"target_config": _H100, "topology": f"1x1x{self.size}"}
        else:
            _require("libtpu", "'looped-actor[plan]'")
            for setting, value in _TPU_SETTINGS.items():
                os.environ.setdefault(setting, value)
            platform, name = "tpu", self.name
            if self.size == 1:
                name, options = f"{self.kind}:1x1x1", {"chips_per_host_bounds": (1, 1, 1)}
        try:
            description = topologies.get_topology_desc(platform=platform, topology_name=name, **options)
        except Exception as error:  # libraries raise errors of any class
            raise UserError(f"topology {self.name}: the compiler does not know it ({brief(error)})") from None
        return make_mesh(description.devices)


def _require(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"compiling for these chips needs {module}, which is not installed: pip install {package}"
        )
