"""Plans: estimates by formula, trip counts by replayed schedules, and programs compiled for absent chips."""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from looped_actor.loop import Categorical, Packed, StreamablePolicy, Streaming, empty_carry
from looped_actor.loop.halting import FixedLoops, PolicyKL
from looped_actor.loop.state import LoopProblem
from looped_actor.models import CoreConfig, DRCConfig
from looped_actor.models.arms import Looped, RepeatedConvLSTM, Stacked, arm_named
from looped_actor.models.cost import update_memory, update_memory_formula
from looped_actor.models.tasks import TASKS
from looped_actor.planning.chips import Chip, Topology
from looped_actor.planning.depths import DISTRIBUTIONS
from looped_actor.planning.estimate import count, estimate_cost, estimate_formula
from looped_actor.planning.hlo import Body, Kernel, read_program
from looped_actor.planning.plan import Schedule, loop_costs
from looped_actor.planning.programs import planned_programs
from looped_actor.planning.schedule import count_packed_loops, count_stream_trips
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replace_fields

CORE = CoreConfig(width=8, heads=1, layers=1)
PUZZLE = {
    "algorithm.num_envs": 16,
    "algorithm.rollout_steps": 8,
    "algorithm.minibatch": 32,
    "levels.train_count": 60,
    "levels.held_out_count": 20,
    "levels.evaluate_count": 10,
    "total_steps": 256,
}
ROBOT = {
    "algorithm.batch": 16,
    "algorithm.updates_per_iteration": 2,
    "algorithm.hidden": [8],
    "data.transitions": 40,
    "total_steps": 4,
}


def small_run(task, arm="looped", learner="ppo", mesh=None, **changes):
    """Return a run that compiles within seconds."""
    sizes = PUZZLE if task in ("boxoban", "rush-hour") else ROBOT
    config = replace_fields(preset(task, "micro", learner=learner), sizes)
    drc = DRCConfig(channels=4, depth=2, ticks=2, hidden=8)
    net = arm and arm_named(arm, CORE, PolicyKL(max_loops=4), drc, (8,))
    return run_of(replace(config, arm=net, **changes), mesh=mesh)


@pytest.mark.parametrize(
    ("task", "arm", "grid", "batch", "microbatch", "error"),
    [
        ("boxoban", Looped(), (10, 10), 64, 4, 0.03),
        ("rush-hour", Looped(CoreConfig(width=64)), (6, 6), 512, 8, 0.03),
        ("cube-double", Looped(CoreConfig(width=32, heads=2, layers=1)), None, 256, 4, 0.06),
        ("boxoban", Stacked(CoreConfig(width=64), 16), (8, 8), 64, 2, 0.03),
        ("rush-hour", RepeatedConvLSTM(), (6, 6), 64, 2, 0.07),
    ],
)
def test_memory_by_formula_is_close_to_the_compiler_s_plan(task, arm, grid, batch, microbatch, error):
    shapes = TASKS[task] if grid is None else replace(TASKS[task], grid=grid)
    model = nnx.eval_shape(lambda: arm.build(shapes, nnx.Rngs(0)))
    given = model, shapes.observation(batch), Packed(microbatch)
    assert update_memory_formula(*given) == pytest.approx(update_memory(*given).activations, rel=error)


def test_a_core_of_another_kind_has_no_formula():
    model = Looped(CORE).build(TASKS["cube-double"], nnx.Rngs(0))
    model.trunk.core = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    assert update_memory_formula(model, TASKS["cube-double"].observation(4)) is None


def test_an_estimate_by_formula_takes_no_time():
    run = run_of(preset("boxoban", "paper"))
    start = time.perf_counter()
    estimate = estimate_formula(run, devices=4)
    assert time.perf_counter() - start < 2
    assert estimate.counts == count(run) == (527_877, 1_865_593_088, 17 * 1_865_593_088)
    assert estimate.state_bytes == 12 * 527_877
    assert estimate.experience_bytes == 1024 * 64 * (10 * 10 * 4 + 34 + 1)
    assert estimate.flops == pytest.approx(17 * 1_865_593_088 * 1e8, rel=1e-3)
    assert estimate.seconds is None


def test_carried_latents_are_a_part_of_a_rollout():
    looped = small_run("rush-hour")
    carrying = run_of(replace(looped.config, arm=replace(looped.config.arm, carry_latent=True)))
    more, less = (estimate_formula(run).experience_bytes for run in (carrying, looped))
    assert more - less == 16 * 8 * 4 * 26 * 8  # steps x float32 x tokens x width


def test_critics_are_counted_alone_and_left_out_if_they_are_given():
    together, alone = (count(small_run("cube-double", **changes)) for changes in ({}, {"arm": None}))
    given = count(small_run("cube-double", critics="runs/critics"))
    assert together.parameters == alone.parameters + given.parameters
    assert alone.flops_per_decision == 0
    assert given.flops_per_decision == together.flops_per_decision > 0
    assert estimate_formula(small_run("cube-double", arm=None)).max_loops == 0


@pytest.mark.parametrize("task", ["rush-hour", "cube-double"])
def test_an_estimated_cost_is_timed(task):
    estimate = estimate_cost(small_run(task))
    assert estimate.seconds is not None
    assert estimate.seconds > 0


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
    # Of a table only the slice is read, and two rows of bytes are padded to a tile of eight.
    assert rows.bytes == 2 * 8 * 512 + 4
    assert dot == Kernel("dot", 2 * 32 * 64 * 16, 4 * (32 * 64 + 64 * 16 + 32 * 16), 0)
    assert [(one.operation, one.bytes) for one in program.collectives] == [("all-reduce", 4 * 64 * 16)]
    (loop,) = program.loops
    assert (loop.name, loop.trips) == ("tick_2_of_4", 7)
    # Four numbers are padded to 128 and ten to 16; arrays in fast memory cost nothing.
    assert loop.kernels == [Kernel("fusion", 0, 4 * 16 * 128, 1500)]


def test_a_compiled_program_is_read():
    def step(i, x):
        return jnp.tanh(x @ x)

    def work(x):
        with jax.named_scope("loop_3"):
            return jax.lax.fori_loop(0, 3, step, x)

    text = jax.jit(work).lower(jax.ShapeDtypeStruct((256, 256), jnp.float32)).compile().as_text()
    (loop,) = read_program(text).loops
    assert (loop.name, loop.trips) == ("loop_3", 3)
    assert sum(kernel.flops for body in (loop, *loop.loops) for kernel in body.kernels) == 2 * 256**3


@pytest.mark.parametrize(("rows", "slots", "decisions"), [(7, 3, 2), (16, 4, 5), (5, 5, 3), (9, 1, 1)])
def test_a_replayed_stream_ticks_as_often_as_the_engine(rows, slots, decisions):
    """Decisions take the same loops, so that nothing is random."""
    depth = 3

    def settle(decided, ended, output):
        decided = decided + ended
        return decided, decided < decisions

    problem = LoopProblem(
        step=lambda z, x: z + 1, readout=lambda z, x: Categorical(z), halting=FixedLoops(depth)
    )
    policy = StreamablePolicy(lambda o: o, lambda x: jnp.zeros((len(x), 2)), problem, lambda z: z)
    end = Streaming(slots).run(
        policy,
        jnp.zeros(rows, jnp.int32),
        rows,
        lambda table, row: row.astype(jnp.float32)[:, None],
        settle,
        lambda table, row: empty_carry(len(row)),
    )
    trips = count_stream_trips(np.array([depth]), rows, slots, decisions)
    ticks = {
        int(name.split("_")[1]): count * trips[name.replace("settle", "tick")]
        for name, count in trips.items()
        if name.startswith("settle")
    }
    assert sum(size * count for size, count in ticks.items()) == int(end.executed)


def test_microbatches_of_one_depth_waste_nothing_and_no_chip_waits():
    assert count_packed_loops(np.array([5]), batch=64, microbatch=8, together=2, chips=4) == (5, 5, 1)


def test_chips_with_fewer_examples_wait_longer_for_the_slowest():
    depths = np.arange(2, 17)
    waits = [count_packed_loops(depths, batch, 4, 1, chips=16).slowest_over_mean for batch in (4, 64, 256)]
    assert waits[0] > waits[1] > waits[2] > 1


def test_reported_depths_have_the_reported_means():
    means = {name: depths.draw(4096).mean() for name, depths in DISTRIBUTIONS.items()}
    reported = {task: TASKS[task].reported_mean_loops for task in ("boxoban", "rush-hour")}
    assert means == pytest.approx(reported | {"easy": 4}, abs=0.1)


def test_a_loop_takes_the_longer_of_its_cycles_and_its_bytes_in_every_pass():
    inner = Body("jit(f)/while", [Kernel("fusion", 0, 2e9, 1e9)], trips=4)
    program = Body("", [Kernel("fusion", 0, 0, 3e9)], loops=[inner])
    chip = Chip(memory=1, bandwidth=1e9, peak=1, link=1, clock=1e9)
    schedule = Schedule(np.array([1]), chips=1, rows=1, decisions=1)
    longest, outside = loop_costs(program, chip, schedule)
    assert (longest.passes, longest.seconds, longest.bound, longest.total) == (4, 2, "memory", 8)
    assert (outside.total, outside.bound) == (3, "compute")


@pytest.mark.parametrize("name", ["v5e:0x2", "v7:1", "v5e:2x", "h100:-1", "v5e:1x1x1x1", "", "v5e:\x1b"])
def test_names_that_are_no_topology(name):
    with pytest.raises(ValueError, match="give KIND:SIDES"):
        Topology.parse(name)


def test_names_of_topologies():
    names = ("v5e", "v5e:16x16", "v5p:2x2x1", "h100:8")
    assert [Topology.parse(name).size for name in names] == [1, 256, 4, 8]


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
    """From shapes alone, for CUDA and TPU: parts that no accelerator can run are found here."""
    if task == "puzzle-3x3":
        pytest.importorskip("ogbench")
    run = small_run(task, arm, learner, mesh=all_devices(1))
    for program in planned_programs(run).values():
        text = program.trace().lower(lowering_platforms=("cuda", "tpu")).as_text()
        assert "callback" not in text  # nothing goes back to the host


def test_critics_alone_are_planned_without_an_evaluation():
    assert list(planned_programs(small_run("cube-double", mesh=all_devices(1), arm=None))) == ["iterate"]
