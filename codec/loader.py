"""Makes a codec from a checkpoint folder.

A folder holds ``codec.pth``, a pickled state dict as published (maybe wrapped in
``{"state_dict": …}``, maybe with a ``generator.`` prefix), or ``codec.safetensors`` with
the same names, and maybe ``codec.json`` with the attention windows. Entries map to
parameters as :func:`fishcli.codec.config.folded_name` says: a weight-norm pair (g, v)
becomes the one weight g · v / ‖v‖, the norm over all dimensions but the first. Loading is
strict, and nothing in a pickle is executed.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fishcli.codec.config import (
    ENCODER_WINDOW,
    QUANTIZER_WINDOW,
    WEIGHT_NORM_SUFFIXES,
    CodecConfig,
    folded_name,
)
from fishcli.codec.model import Codec, parameter_dtype
from fishcli.errors import RunError

LISTED_NAMES = 8  # of each kind of mismatch; an error line stays readable


def load_codec(
    folder: Path, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> Codec:
    """Load the codec of a checkpoint folder onto ``device``, ready for inference.

    ``dtype`` is what the network computes in. Snake, norms, quantizers and the
    last convolution stay in float32. Raises RunError naming the file, and tensors that are
    missing, unexpected or of wrong shape.
    """
    path = _weights_file(folder)
    state = _read_state(path, device="cpu")
    config = _config(path, state)
    weights = fold_weight_norm(state)
    codec = Codec.empty(config)
    _check_names_and_shapes(path, expected=codec.state_dict(), found=weights)
    placed = {k: v.to(device, parameter_dtype(k, dtype)) for k, v in weights.items()}
    codec.load_state_dict(placed, strict=True, assign=True)
    return codec


def codec_config(folder: Path) -> CodecConfig:
    """Sizes of a folder's codec, without reading its weights into memory."""
    path = _weights_file(folder)
    return _config(path, _read_state(path, device="meta"))


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoint entries to parameters: pairs folded, recomputable buffers left out.

    Raises RunError naming a pair's half that is missing or has the wrong shape.
    """
    magnitude_of = {
        name: name.removesuffix(v) + g
        for v, g in WEIGHT_NORM_SUFFIXES
        for name in state
        if name.endswith(v)
    }
    _check_pairs(state, magnitude_of)
    weights = {}
    for name, value in state.items():
        folded = folded_name(name)
        if folded is None:
            continue
        if name in magnitude_of:
            norm = value.float().flatten(1).norm(dim=1).view(-1, *[1] * (value.ndim - 1))
            value = state[magnitude_of[name]].float() * value.float() / norm  # noqa: PLW2901
        weights[folded] = value
    return weights


def _check_pairs(state: Mapping[str, Tensor], magnitude_of: Mapping[str, str]) -> None:
    magnitudes = set(magnitude_of.values())
    suffixes = tuple(g for _, g in WEIGHT_NORM_SUFFIXES)
    lonely = [name for name in state if name.endswith(suffixes) and name not in magnitudes]
    missing = [g for g in magnitudes if g not in state]
    if lonely or missing:
        names = sorted(missing) + [f"the direction that goes with {name}" for name in lonely]
        raise RunError(f"codec: missing {_listed(names)}")
    for name, magnitude in magnitude_of.items():
        wanted = (state[name].shape[0], *[1] * (state[name].ndim - 1))
        if state[magnitude].shape != wanted:
            found = list(state[magnitude].shape)
            raise RunError(f"codec: {magnitude} has shape {found}, expected {list(wanted)}")


def _check_names_and_shapes(
    path: Path, *, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> None:
    wrong = [
        f"{name} {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    problems = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "wrong shape": wrong,
    }
    told = [f"{kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if told:
        raise RunError(f"{path}: does not fit the codec; {'; '.join(told)}")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - LISTED_NAMES
    return ", ".join(names[:LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def _weights_file(folder: Path) -> Path:
    for name in ("codec.pth", "codec.safetensors"):
        if (folder / name).is_file():
            return folder / name
    raise RunError(f"{folder / 'codec.pth'} is missing: a checkpoint holds its codec there")


def _read_state(path: Path, device: str) -> dict[str, Tensor]:
    """Tensors by name, wrapper and prefix taken off; on "meta" only shapes are read."""
    try:
        if path.suffix == ".safetensors":
            state: Any = _read_safetensors(path, device)
        else:
            state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        # The message of torch runs over many lines and suggests to switch the guard off.
        raise RunError(f"{path}: refused: it is not a plain pickle of tensors") from None
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise RunError(f"{path}: cannot be read: {first_line}") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise RunError(f"{path}: is not a state dict of tensors")
    named = {str(name).removeprefix("generator."): value for name, value in state.items()}
    if len(named) != len(state):
        raise RunError(f"{path}: holds tensors twice, with and without the prefix generator.")
    return named


def _read_safetensors(path: Path, device: str) -> dict[str, Tensor]:
    if device != "meta":
        return load_file(path, device)
    with safe_open(path, framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _config(path: Path, state: Mapping[str, Tensor]) -> CodecConfig:
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    return CodecConfig.from_shapes(shapes, **_windows(path.with_name("codec.json")))


def _windows(path: Path) -> dict[str, int]:
    """The attention windows of ``codec.json``, or upstream's where there is no such file."""
    windows = {"quantizer_window": QUANTIZER_WINDOW, "encoder_window": ENCODER_WINDOW}
    if not path.is_file():
        return windows
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise RunError(f"{path}: must hold an object")
    for name, value in given.items():
        if name not in windows:
            raise RunError(f"{path}: unknown key {name!r}: known are {', '.join(windows)}")
        if type(value) is not int or value < 1:
            raise RunError(f"{path}: {name} is {value!r}: allowed is a whole number from 1")
        windows[name] = value
    return windows
