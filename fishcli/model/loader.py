"""Strict loading of both transformers from safetensors, one file or sharded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fishcli.errors import RunError
from fishcli.model.config import ModelConfig
from fishcli.model.fast import FastAR
from fishcli.model.slow import SlowAR

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Checkpoint prefix → ours, first match wins. The shared audio table belongs to the slow AR.
PREFIXES = (
    ("audio_decoder.codebook_embeddings.", "slow.codebook_embeddings."),
    ("text_model.model.", "slow."),
    ("audio_decoder.", "fast."),
)


class DualAR(nn.Module):
    """Slow and fast AR of one checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.slow = SlowAR(config)
        self.fast = FastAR(config)

    def ready(self) -> DualAR:
        """Freeze the weights and compute what is derived from the configuration."""
        device = self.slow.embeddings.weight.device
        self.slow.make_rope(device)
        self.fast.make_rope(device)
        return self.requires_grad_(False).eval()


def checkpoint_name(ours: str) -> str:
    """The checkpoint's name of one of our parameters."""
    for theirs, prefix in PREFIXES:
        if ours.startswith(prefix):
            return theirs + ours.removeprefix(prefix)
    raise AssertionError(f"no checkpoint name for {ours}")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint; raises :class:`RunError` naming a missing one."""
    index = folder / INDEX
    if index.exists():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise RunError(f"{index} is not a safetensors index: {error}") from None
        files = [folder / str(name) for name in names]
    else:
        files = [folder / SINGLE]
    for file in files:
        if file.parent != folder:
            raise RunError(f"{index} names a file outside its folder: {file}")
        if not file.exists():
            raise RunError(f"{file} is missing from the checkpoint")
    return files


def load_ar(folder: Path, device: torch.device, dtype: torch.dtype) -> DualAR:
    """Load both transformers onto ``device`` in ``dtype``.

    Every parameter must be there once with its exact shape, and nothing else: otherwise
    :class:`RunError` lists the names.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        model = DualAR(config)
    wanted = {checkpoint_name(name): name for name in model.state_dict()}
    shapes = {name: parameter.shape for name, parameter in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    problems: list[str] = []
    for name, tensor in _tensors(weight_files(folder)):
        ours = wanted.get(name)
        if ours is None:
            problems.append(f"unexpected {name}")
        elif ours in found:
            problems.append(f"twice {name}")
        elif tensor.shape != shapes[ours]:
            want, have = list(shapes[ours]), list(tensor.shape)
            problems.append(f"{name} has shape {have}, expected {want}")
        else:
            found[ours] = tensor.to(device=device, dtype=dtype)
    problems += [f"missing {name}" for name, ours in wanted.items() if ours not in found]
    if problems:
        raise RunError(f"{folder}: weights do not fit config.json: " + _listed(problems))
    model.load_state_dict(found, strict=True, assign=True)
    return model.ready()


def random_ar(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> DualAR:
    """Random weights of the given sizes, made on the device: for measuring speed only.

    Matrices are normal with standard deviation 1 / sqrt(columns), norms are one, biases zero,
    so activations stay of order one at any width.
    """
    with torch.device("meta"):
        model = DualAR(config)
    model.to(dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    return model.ready()


def _tensors(files: list[Path]) -> Iterator[tuple[str, Tensor]]:
    """Every stored tensor, one at a time: never two copies of the model on the host."""
    for file in files:
        with ExitStack() as stack:
            try:
                handle = stack.enter_context(safe_open(str(file), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise RunError(f"{file} cannot be read: {error}") from None
            for name in handle.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                yield name, handle.get_tensor(name)


def _listed(problems: list[str], limit: int = 12) -> str:
    more = f" (and {len(problems) - limit} more)" if len(problems) > limit else ""
    return "; ".join(sorted(problems)[:limit]) + more
