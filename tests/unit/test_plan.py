"""Plans for chips that are not here: what is read from a compiled text, and the schedules behind it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor.loop import Categorical, OpenLoop, Streaming
from looped_actor.loop.halting import FixedLoops
from looped_actor.loop.hardware import computing, default_chunk, default_slots
from looped_actor.loop.state import LoopProblem
from looped_actor.planning.chips import Chip, Topology
from looped_actor.planning.hlo import Body, Kernel, read_program
from looped_actor.planning.plan import Schedule, parts_of
from looped_actor.planning.schedule import packed, streamed
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replaced
from tiny import CHANGES, WORLD_CHANGES

TEXT = """HloModule jit_f, is_scheduled=true

%fused (param_0: u8[900,512], param_1: s32[]) -> u8[2,512] {
  %param_0 = u8[900,512]{1,0:T(8,128)(4,1)} parameter(0)
  %param_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %taken = u8[2,512]{1,0:T(8,128)(4,1)} dynamic-slice(%param_0, %param_1, %zero)
}

%condition (s: (s32[], f32[10,4])) -> pred[] {
  %s = (s32[], f32[10,4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (s.1: (s32[], f32[10,4])) -> (s32[], f32[10,4]) {
  %s.1 = (s32[], f32[10,4]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %near = f32[10,4]{1,0:T(8,128)S(1)} get-tuple-element(%s.1), index=1
  %far = f32[10,4]{1,0:T(8,128)} fusion(%near), kind=kLoop, backend_config={"estimated_cycles":"1500"}
  ROOT %t = (s32[], f32[10,4]) tuple(%i.1, %far)
}

ENTRY %main (a: f32[32,64], b: f32[64,16], table: u8[900,512], at: s32[]) -> f32[32,16] {
  %a = f32[32,64]{1,0} parameter(0)
  %b = f32[64,16]{1,0} parameter(1)
  %table = u8[900,512]{1,0:T(8,128)(4,1)} parameter(2)
  %at = s32[] parameter(3)
  %rows = u8[2,512]{1,0:T(8,128)(4,1)} fusion(%table, %at), kind=kLoop, calls=%fused
  %w = (s32[], f32[10,4]) while(%s), condition=%condition, body=%body, metadata={op_name="tick_2_of_4/while"}
  %sum = f32[64,16]{1,0} all-reduce(%b), replica_groups={}
  ROOT %dot = f32[32,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_program_is_read_loop_by_loop():
    program = read_program(TEXT)
    rows, dot = program.kernels
    # Of a table only what is taken is read, and two rows of bytes fill a tile of eight.
    assert rows.bytes == 2 * 8 * 512 + 4
    assert dot == Kernel("dot", 2 * 32 * 64 * 16, 4 * (32 * 64 + 64 * 16 + 32 * 16), 0)
    assert [(one.operation, one.bytes) for one in program.exchanges] == [("all-reduce", 4 * 64 * 16)]
    (loop,) = program.loops
    assert (loop.name, loop.trips) == ("tick_2_of_4", 7)
    # Four numbers are filled up to 128 and ten to 16; what lies near costs nothing.
    assert loop.kernels == [Kernel("fusion", 0, 4 * 16 * 128, 1500)]


def test_a_compiled_program_is_read():
    def step(i, x):
        return jnp.tanh(x @ x)

    def work(x):
        with jax.named_scope("think_3"):
            return jax.lax.fori_loop(0, 3, step, x)

    text = jax.jit(work).lower(jax.ShapeDtypeStruct((256, 256), jnp.float32)).compile().as_text()
    (loop,) = read_program(text).loops
    assert (loop.name, loop.trips) == ("think_3", 3)
    assert sum(kernel.flops for body in (loop, *loop.loops) for kernel in body.kernels) == 2 * 256**3


@pytest.mark.parametrize(("rows", "slots", "thoughts"), [(7, 3, 2), (16, 4, 5), (5, 5, 3), (9, 1, 1)])
def test_a_replayed_stream_ticks_as_often_as_the_engine(rows, slots, thoughts):
    """With thoughts of one depth, in which nothing is left to chance."""
    depth = 3

    def settle(had, ended, thought):
        had = had + ended
        return had, had < thoughts

    problem = LoopProblem(
        step=lambda z, x: z + 1, readout=lambda z, x: Categorical(z), halting=FixedLoops(depth)
    )
    loop = OpenLoop(lambda observed: observed, lambda x: jnp.zeros((len(x), 2)), problem, lambda z: z)
    table = jnp.zeros(rows, jnp.int32)
    end = Streaming(slots).run(loop, table, rows, lambda table, row: row.astype(jnp.float32)[:, None], settle)
    trips = streamed(np.array([depth]), rows, slots, thoughts)
    ticks = {
        int(name.split("_")[1]): count * trips[name.replace("settle", "tick")]
        for name, count in trips.items()
        if name.startswith("settle")
    }
    assert sum(size * count for size, count in ticks.items()) == int(end.executed)


def test_chunks_of_one_depth_waste_nothing_and_no_chip_waits():
    assert packed(np.array([5]), batch=64, chunk=8, at_once=2, chips=4) == (5, 5, 1)


def test_fewer_examples_a_chip_wait_longer_for_the_slowest():
    depths = np.arange(2, 17)
    waits = [packed(depths, batch, 4, 1, chips=16)[2] for batch in (4, 64, 256)]
    assert waits[0] > waits[1] > waits[2] > 1


def test_a_part_takes_the_longer_of_its_cycles_and_its_bytes_as_often_as_it_is_passed():
    inner = Body("jit(f)/while", [Kernel("fusion", 0, 2e9, 1e9)], trips=4)
    program = Body("", [Kernel("fusion", 0, 0, 3e9)], loops=[inner])
    chip = Chip(memory=1, bandwidth=1e9, peak=1, link=1, clock=1e9)
    schedule = Schedule(np.array([1]), chips=1, rows=1, thoughts=1)
    longest, around = parts_of(program, chip, schedule)
    assert (longest.passes, longest.seconds, longest.bound, longest.total) == (4, 2, "memory", 8)
    assert (around.total, around.bound) == (3, "compute")


@pytest.mark.parametrize("name", ["v5e:0x2", "v7:1", "v5e:2x", "h100:-1", "v5e:1x1x1x1", "", "v5e:\x1b"])
def test_topologies_that_are_none(name):
    with pytest.raises(ValueError, match="give KIND:SIDES"):
        Topology.named(name)


def test_names_of_topologies():
    assert [Topology.named(name).size for name in ("v5e", "v5e:16x16", "v5p:2x2x1", "h100:8")] == [
        1,
        256,
        4,
        8,
    ]


def test_what_suits_a_chip_is_asked_of_the_program_s_mesh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (default_chunk(12_928), default_slots(12_928)) == (2, 8)
    with computing(chunk=5, slots=6):
        assert (default_chunk(12_928), default_slots(12_928)) == (5, 6)
    assert default_chunk(12_928) == 2


@pytest.mark.parametrize(
    ("task", "arm", "learner"),
    [
        ("boxoban", "looped", "ppo"),
        ("rush-hour", "drc", "ppo"),
        ("rush-hour", "looped", "imitation"),
        ("cube-double", "looped", "ppo"),
        ("puzzle-3x3", "iso-params", "ppo"),
    ],
)
def test_every_trainer_lowers_for_accelerators(task, arm, learner):
    """From shapes alone, for CUDA and TPU: what no accelerator could run is seen here."""
    changes = WORLD_CHANGES if "-3x3" in task or "cube" in task else CHANGES
    config = replaced(preset(task, "micro", arm, learner), changes)
    run = run_of(config, mesh=all_devices(1))
    for planned in run.planned_programs().values():
        text = planned.trace().lower(lowering_platforms=("cuda", "tpu")).as_text()
        assert "callback" not in text  # nothing goes back to the host
