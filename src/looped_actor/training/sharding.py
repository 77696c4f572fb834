"""Sharding: rows of environments and examples over all devices, everything else replicated.

One mesh axis, `DATA`, over every device of every process: one laptop core and a pod run one program.
"""

import functools
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import numpy as np
from jax import core
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from looped_actor.utils.checks import brief, shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import default_workers

DATA = "data"
ROWS: Any = PartitionSpec(DATA)
REPLICATED: Any = PartitionSpec()


def all_devices(count: int | None = None) -> Mesh:
    """Return a mesh of all devices, or of the first `count` of every process."""
    devices = jax.devices()
    if count is not None:
        own: dict[int, list] = {}
        for device in devices:
            own.setdefault(device.process_index, []).append(device)
        fewest = min(len(some) for some in own.values())
        if not 1 <= count <= fewest:
            raise UserError(f"{count} devices were asked for, and there are {fewest}")
        devices = [device for some in own.values() for device in some[:count]]
    return make_mesh(devices)


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """Return a mesh of devices with the one axis `DATA`."""
    return Mesh(np.array(devices), (DATA,), axis_types=(AxisType.Auto,))


MAX_DEFAULT_CORES = 8
"""Cores of a CPU that become devices by default."""


def _cores() -> int:
    """Return the cores that this process may use, rounded down to a power of two, which divides more
    batches."""
    return min(MAX_DEFAULT_CORES, 2 ** int(math.log2(default_workers())))


def shardings(mesh: Mesh, specs: Any) -> Any:
    """Return a tree of partition specs as shardings of a mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


@functools.cache
def is_local(mesh: Mesh) -> bool:
    """Return whether programs can run on these devices. They can be compiled for others."""
    first = mesh.devices.flat[0]
    try:
        return first in jax.devices(first.platform)
    except RuntimeError:  # no such backend
        return False


def abstract_shards(mesh: Mesh, tree: Any, specs: Any) -> Any:
    """Return the shapes of a pytree with shardings."""

    def put(spec: PartitionSpec, part: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part
        )

    return jax.tree.map(put, specs, tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Put a pytree, of which every process holds the same copy, on all devices."""
    return place(mesh, tree, REPLICATED)


def jit_per_device(mesh: Mesh, function: Callable, in_specs: Any, out_specs: Any) -> Any:
    """Return a jitted function in which every device computes its own part.

    Args:
      mesh: the devices.
      function: the part of one device; `DATA` is the axis of its collectives.
      in_specs: partition specs of the arguments.
      out_specs: partition specs of the results.
    """
    # The loop's while_loop and custom VJP do not track which values vary over devices.
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )


def sum_over_devices(value: Array, axis: str | None) -> Array:
    """Return the sum over a mesh axis; without an axis, the value."""
    return value if axis is None else jax.lax.psum(value, axis)


def mean_over_devices(tree: PyTree, axis: str | None) -> Any:
    """Return the mean over a mesh axis of every array of a pytree; without an axis, the pytree."""
    return tree if axis is None else jax.lax.pmean(tree, axis)


def own_rows(array: Array, axis: int = 0) -> np.ndarray:
    """Return the rows of an array that lie on this process's devices."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards], axis)


def from_own_rows(mesh: Mesh, rows: np.ndarray, spec: PartitionSpec) -> Array:
    """Return an array over all devices, of which every process holds its own rows."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), rows)


def to_one_device(tree: Any) -> Any:
    """Put a pytree that lies on all devices, or on the host, on the first device of this process."""
    return jax.device_put(jax.tree.map(np.asarray, tree), jax.local_devices()[0])


def place(mesh: Mesh, tree: Any, spec: PartitionSpec) -> Any:
    """Put a pytree, of which every process holds the same copy, on devices by a partition spec.

    On devices that are not present, only its shapes are placed. Traced arrays stay as they are.
    """
    sharding, here = NamedSharding(mesh, spec), is_local(mesh)

    def put(leaf: Any) -> Any:
        if isinstance(leaf, core.Tracer):
            return leaf
        if not here:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


SECONDS_TO_CONNECT = 120
"""Time within which all processes of a computation must have started."""
HEARTBEAT_SECONDS = 60
"""Silence after which a process counts as gone."""


def _connect(coordinator: str, processes: int, process: int) -> None:
    """Join a computation of several processes. JAX aborts if that fails, so errors are looked for first."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"coordinator {shown(coordinator)}: give host:port of process 0, or auto")
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    if process == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            raise UserError(
                f"coordinator {coordinator}: port {port} cannot be had ({error.strerror}); is another "
                "process started with --process 0?"
            ) from None
    while process > 0:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"coordinator {coordinator}: no answer in {SECONDS_TO_CONNECT} seconds ({error}); is the "
                    "process with --process 0 running there?"
                ) from None
            time.sleep(0.5)
    missing = (
        f"not all of {processes} processes have started within {SECONDS_TO_CONNECT} seconds: start each once"
    )
    alarm = threading.Timer(deadline - time.monotonic(), _exit, [missing])
    alarm.daemon = True
    alarm.start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        initialization_timeout=3 * SECONDS_TO_CONNECT,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    # Gloo gives up after 30 seconds where one process connects later than another, which may have levels
    # to make first; once connected it waits.
    multihost_utils.sync_global_devices("all processes are here")
    alarm.cancel()


@contextmanager
def exit_together(advice: str) -> Iterator[None]:
    """End all processes of a run, with a message, if this one fails: none can continue alone.

    JAX would first wait for minutes for those that are gone, and then abort. The others end in the same way,
    when they next need this one.

    Args:
      advice: how to continue.
    """
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        _exit(
            f"process {jax.process_index()} of {jax.process_count()} ends ({brief(error)}). Another one may "
            f"have ended before it, and its output says why; {advice}"
        )


def _exit(message: str) -> NoReturn:
    print(f"looped-actor: {message}", file=sys.stderr, flush=True)
    os._exit(2)


def start_devices(
    devices: int | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> Mesh:
    """Return the mesh of a command. Must come before any other use of JAX.

    On clusters that JAX knows (TPU pods, Slurm, Open MPI) `coordinator="auto"` finds the rest out.

    Args:
      devices: how many of each process to use; on a CPU, how many to make of its cores. Default: all
        accelerators, or all cores of a CPU: nets of this size do not use two cores well, and two devices
        of a core each are nearly twice as fast. Several processes make one each.
      coordinator: host:port of process 0, "auto", or None for a computation of one process.
      processes: how many there are.
      process: which one this is.
    """
    if devices is not None:
        cores = os.cpu_count() or 1
        if not 1 <= devices <= max(cores, 8):
            raise UserError(f"{devices} devices: there must be at least 1, and no more than there are")
        jax.config.update("jax_num_cpu_devices", devices)
    elif coordinator is None:
        jax.config.update("jax_num_cpu_devices", _cores())
    if coordinator == "auto":
        jax.distributed.initialize()
    elif coordinator is not None:
        if processes is None or process is None or not 0 <= process < processes:
            raise UserError(f"process {process} of {processes}: give both, counted from 0")
        _connect(coordinator, processes, process)
    elif processes is not None or process is not None:
        raise UserError("a computation of several processes needs a coordinator (host:port, or auto)")
    return all_devices(devices)
