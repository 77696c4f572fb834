"""The paper's theorem as a program: machines, the policies of its proof, and what they cost."""

from looped_actor.theory.candidates import CANDIDATES
from looped_actor.theory.machines import DescriptionError, Entry, Machine, Outcome
from looped_actor.theory.separation import (
    SCAN_COST,
    Costs,
    Examination,
    OneStepMDP,
    Trial,
    costs,
    evaluate,
    examine,
    hard_rule,
    on_own_state,
    own_state,
    polynomial_through,
    program_in,
    room_for,
)
from looped_actor.theory.universal import adaptive_policy, fixed_policy

__all__ = [
    "CANDIDATES",
    "SCAN_COST",
    "Costs",
    "DescriptionError",
    "Entry",
    "Examination",
    "Machine",
    "OneStepMDP",
    "Outcome",
    "Trial",
    "adaptive_policy",
    "costs",
    "evaluate",
    "examine",
    "fixed_policy",
    "hard_rule",
    "on_own_state",
    "own_state",
    "polynomial_through",
    "program_in",
    "room_for",
]
