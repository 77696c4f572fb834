"""Weights as safetensors files with a format name and a checksum, checked before they are used."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from looped_actor.utils.checks import shown
from looped_actor.utils.errors import PolicyError
from looped_actor.utils.files import checksum_of, read_tensors, reading, write_whole


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the arrays of a pytree by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def write_weights(tree: Any, file: pathlib.Path, format_name: str) -> None:
    """Write the arrays of a pytree by their names."""
    named = {name: np.asarray(leaf) for name, leaf in named_leaves(tree).items()}
    # One entry, because safetensors writes several in no fixed order, and equal weights are equal files.
    about = json.dumps({"format": format_name, "checksum": checksum_of(named)})
    write_whole(file, safetensors.numpy.save(named, metadata={"policy": about}))


def read_weights(file: pathlib.Path, format_name: str) -> dict[str, np.ndarray]:
    """Read the arrays of a file of a format by their names. Executes nothing."""
    with reading("safetensors file", file, lambda problem: PolicyError(f"{file}: {problem}")):
        metadata, there = read_tensors(file)
        said = json.loads(metadata["policy"]) if "policy" in metadata else metadata
        if said.get("format") != format_name:
            raise PolicyError(
                f"{file}: format {shown(said.get('format'))}; this version reads {format_name!r}"
            )
        if said.get("checksum", "") not in ("", checksum_of(there)):  # older versions wrote none
            raise PolicyError(f"{file}: the file is damaged: its checksum does not match")
    return there


def fit_tensors(like: Any, tensors: Mapping[str, np.ndarray], source: pathlib.Path) -> Any:
    """Return named arrays as a pytree like `like`; raise an error unless names and shapes agree."""
    wanted = named_leaves(like)
    for name in [*wanted, *tensors]:
        if name not in wanted:
            raise PolicyError(f"{source}: unexpected tensor {name}")
        expected, found = tuple(wanted[name].shape), tensors[name].shape if name in tensors else "missing"
        if expected != found:
            raise PolicyError(f"{source}: {name} is {found}; for its config.json it must be {expected}")
        if tensors[name].dtype.kind != "f" or not np.isfinite(jnp.asarray(tensors[name])).all():
            raise PolicyError(f"{source}: {name} holds values that are not finite floating-point numbers")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(tensors[name]) for name in wanted])
