"""Names that commands and configurations know. Imports nothing, so `--help` is fast."""

from typing import Literal, get_args

PuzzleName = Literal["boxoban", "rush-hour"]
RobotName = Literal["cube-double", "cube-triple", "puzzle-3x3", "scene"]
DataKind = Literal["play", "noisy"]
TaskName = Literal["boxoban", "rush-hour", "cube-double", "cube-triple", "puzzle-3x3", "scene"]
Scale = Literal["micro", "small", "paper"]
LearnerName = Literal["ppo", "imitation"]
ArmName = Literal["looped", "iso-params", "iso-flops", "drc", "mlp", "fixed-4", "fixed-8", "fixed-16"]
Platform = Literal["cpu", "cuda", "rocm", "tpu"]

PUZZLES: tuple[PuzzleName, ...] = get_args(PuzzleName)
CONFIG_FILE, WEIGHTS_FILE = "config.json", "policy.safetensors"
"""Files of a policy; a run has a `config.json` too."""
CUSTOM_CODE = "custom_environment_"
"""Prefix of the module name of a user's own file."""
