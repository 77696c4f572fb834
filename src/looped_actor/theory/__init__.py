"""Executable construction of Theorem 3.1: Turing machines, the policies of its proof, and their costs.

`machines` defines Turing machines, `separation` the MDPs and costs, in the order of the proof. `universal`
builds the two policies: they parse a program (`parsing`) and simulate it (`simulation`) in sweeps over a tape
with several tracks (`sweeps`), which `compiler` translates to transitions. `candidates` and `report` contain
the machines and measurements that the command prints.
"""

from looped_actor.theory.candidates import CANDIDATES
from looped_actor.theory.machines import DescriptionError, Machine, RunResult, Transition
from looped_actor.theory.separation import (
    SCAN_COST,
    DiagonalRun,
    OneStepMDP,
    PolicyEvaluation,
    StepCounts,
    count_steps,
    diagonal_state,
    evaluate_policy,
    extract_program,
    hard_action,
    run_on_diagonal_state,
    runtime,
    smallest_n,
)
from looped_actor.theory.universal import adaptive_policy, fixed_policy

__all__ = [
    "CANDIDATES",
    "SCAN_COST",
    "DescriptionError",
    "DiagonalRun",
    "Machine",
    "OneStepMDP",
    "PolicyEvaluation",
    "RunResult",
    "StepCounts",
    "Transition",
    "adaptive_policy",
    "count_steps",
    "diagonal_state",
    "evaluate_policy",
    "extract_program",
    "fixed_policy",
    "hard_action",
    "run_on_diagonal_state",
    "runtime",
    "smallest_n",
]
