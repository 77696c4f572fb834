"""Where things lie: rows of environments and examples spread over all devices, the rest on each.

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

from looped_actor.checks import brief, shown
from looped_actor.errors import UserError
from looped_actor.processes import default_workers

DATA = "data"
ROWS: Any = PartitionSpec(DATA)
EVERYWHERE: Any = PartitionSpec()


def all_devices(count: int | None = None) -> Mesh:
    """A mesh of all devices, or of the first `count` of every process."""
    devices = jax.devices()
    if count is not None:
        own: dict[int, list] = {}
        for device in devices:
            own.setdefault(device.process_index, []).append(device)
        fewest = min(len(some) for some in own.values())
        if not 1 <= count <= fewest:
            raise UserError(f"{count} devices were asked for, and there are {fewest}")
        devices = [device for some in own.values() for device in some[:count]]
    return mesh_of(devices)


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """Devices as the one mesh that everything runs on."""
    return Mesh(np.array(devices), (DATA,), axis_types=(AxisType.Auto,))


MOST_CORES = 8
"""Cores of a CPU that become devices unless more are asked for."""


def _cores() -> int:
    """Cores that this process may use, rounded down to a power of two, which divides more batches."""
    return min(MOST_CORES, 2 ** int(math.log2(default_workers())))


def shardings(mesh: Mesh, specs: Any) -> Any:
    """A tree of specifications as shardings of a mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


@functools.cache
def are_here(mesh: Mesh) -> bool:
    """Whether something can run on these devices. One can compile for others."""
    first = mesh.devices.flat[0]
    try:
        return first in jax.devices(first.platform)
    except RuntimeError:  # no such backend
        return False


def shapes_on(mesh: Mesh, tree: Any, specs: Any) -> Any:
    """The shapes of a pytree, where specifications say that it would lie."""

    def put(spec: PartitionSpec, part: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part
        )

    return jax.tree.map(put, specs, tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def on_every_device(mesh: Mesh, tree: Any) -> Any:
    """A pytree that this process holds whole, put on all devices. All processes must hold the same."""
    return placed(mesh, tree, EVERYWHERE)


def on_each_device(mesh: Mesh, work: Callable, given: Any, gives: Any) -> Any:
    """A jitted function in which every device does its own part of the work.

    Args:
      mesh: the devices.
      work: the part of one device; `DATA` is the axis of its collectives.
      given: where its arguments lie, as specifications.
      gives: where its results will.
    """
    # The loop's while_loop and custom VJP do not track what varies over devices.
    return jax.jit(jax.shard_map(work, mesh=mesh, in_specs=given, out_specs=gives, check_vma=False))


def on_one_device(tree: Any) -> Any:
    """A pytree that lies on all devices, or on the host, on the first one of this process."""
    return jax.device_put(jax.tree.map(np.asarray, tree), jax.local_devices()[0])


def placed(mesh: Mesh, tree: Any, spec: PartitionSpec) -> Any:
    """A pytree that this process holds whole, put where a specification says. All must hold the same.

    On devices that are not here, only shapes can lie; and what is traced stays as it is.
    """
    sharding, here = NamedSharding(mesh, spec), are_here(mesh)

    def put(leaf: Any) -> Any:
        if isinstance(leaf, core.Tracer):
            return leaf
        if not here:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


SECONDS_TO_MEET = 120
"""Time in which all processes of a computation must have started."""
SECONDS_OF_SILENCE = 60
"""After which a process counts as gone, where nothing else tells."""


def _meet(coordinator: str, processes: int, process: int) -> None:
    """Join a computation of several processes. JAX aborts where that fails, so what can is checked before."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"coordinator {shown(coordinator)}: give host:port of process 0, or auto")
    deadline = time.monotonic() + SECONDS_TO_MEET
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
                    f"coordinator {coordinator}: no answer in {SECONDS_TO_MEET} seconds ({error}); is the "
                    "process with --process 0 running there?"
                ) from None
            time.sleep(0.5)
    missing = (
        f"not all of {processes} processes have started within {SECONDS_TO_MEET} seconds: start each once"
    )
    alarm = threading.Timer(deadline - time.monotonic(), _leave, [missing])
    alarm.daemon = True
    alarm.start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        initialization_timeout=3 * SECONDS_TO_MEET,
        heartbeat_timeout_seconds=SECONDS_OF_SILENCE,
    )
    # Gloo gives up after 30 seconds where one process connects later than another, which may have levels
    # to make first; once connected it waits.
    multihost_utils.sync_global_devices("all processes are here")
    alarm.cancel()


@contextmanager
def ending_together(advice: str) -> Iterator[None]:
    """Of several processes none can go on alone: where this one fails, it says so and ends at once.

    JAX would first wait for those that are gone, for minutes, and then abort. The others end likewise, when
    they next need this one.

    Args:
      advice: how to go on.
    """
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        _leave(
            f"process {jax.process_index()} of {jax.process_count()} ends ({brief(error)}). Another one may "
            f"have ended before it, and its output says why; {advice}"
        )


def _leave(message: str) -> NoReturn:
    print(f"looped-actor: {message}", file=sys.stderr, flush=True)
    os._exit(2)


def start_devices(
    devices: int | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> Mesh:
    """The mesh of a command, before any other use of JAX.

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
        _meet(coordinator, processes, process)
    elif processes is not None or process is not None:
        raise UserError("a computation of several processes needs a coordinator (host:port, or auto)")
    return all_devices(devices)
