"""The names that commands and configurations know. Nothing is imported, so that `--help` answers at once."""

from typing import Literal, get_args

PuzzleName = Literal["boxoban", "rush-hour"]
WorldName = Literal["cube-double", "cube-triple", "puzzle-3x3", "scene"]
DataKind = Literal["play", "noisy"]
TaskName = Literal["boxoban", "rush-hour", "cube-double", "cube-triple", "puzzle-3x3", "scene"]
Scale = Literal["micro", "small", "paper"]
LearnerName = Literal["ppo", "imitation"]
ArmName = Literal["looped", "iso-params", "iso-flops", "drc", "mlp", "fixed-4", "fixed-8", "fixed-16"]
LearnedName = Literal["all", "critics"]
StartName = Literal["fixed", "carried", "carried-bfloat16"]
Platform = Literal["cpu", "cuda", "rocm", "tpu"]

PUZZLES: tuple[PuzzleName, ...] = get_args(PuzzleName)
ALGORITHMS = {"ppo": "PPO", "imitation": "imitation", "gciql": "GCIQL"}
"""What to call a learner."""
CONFIG_FILE, WEIGHTS_FILE = "config.json", "policy.safetensors"
"""The files of a policy; a run has a `config.json` too."""
OWN_CODE = "own_world_"
"""How the module of a user's own file is called, before the file's name: no library has such a name."""
