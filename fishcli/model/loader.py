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
from fishcli.kernels.ops import PLAIN, Ops
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
STACKED = ".w13.weight"  # ours; the checkpoint has .w1.weight over .w3.weight


class DualAR(nn.Module):
    """Slow and fast AR of one checkpoint."""

    def __init__(self, config: ModelConfig, ops: Ops = PLAIN) -> None:
        super().__init__()
        self.config = config
        self.slow = SlowAR(config, ops)
        self.fast = FastAR(config, ops)

    def ready(self) -> DualAR:
        """Freeze the weights and compute what follows from them."""
        self.slow.derive()
        self.fast.derive()
        return self.requires_grad_(False).eval()

    def with_ops(self, ops: Ops) -> DualAR:
        """The same weights, not copied, to run with other ``ops``."""
        with torch.device("meta"):
            twin = DualAR(self.config, ops)
        twin.load_state_dict(self.state_dict(), assign=True)
        return twin.ready()

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Our parameters under the checkpoint's names; stacked ones as views of their parts."""
        tensors: dict[str, Tensor] = {}
        for ours, parameter in self.named_parameters():
            name = _checkpoint_name(ours)
            if name.endswith(STACKED):
                stem = name.removesuffix(STACKED)
                gate, up = parameter.detach().chunk(2)
                tensors |= {f"{stem}.w1.weight": gate, f"{stem}.w3.weight": up}
            else:
                tensors[name] = parameter.detach()
        return tensors


def _checkpoint_name(ours: str) -> str:
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


def load_ar(folder: Path, device: torch.device, dtype: torch.dtype, ops: Ops = PLAIN) -> DualAR:
    """Load both transformers onto ``device`` in ``dtype``, to run with ``ops``.

    Every parameter must be there once with its exact shape, and nothing else: otherwise
    :class:`RunError` lists the names.
    """
    config = ModelConfig.from_folder(folder)
    files = weight_files(folder)
    model = _empty(config, device, dtype, ops)
    waiting = model.checkpoint_tensors()
    known = frozenset(waiting)
    problems: list[str] = []
    for name, tensor in _tensors(files):
        target = waiting.pop(name, None)
        if target is None:
            problems.append(f"{'twice' if name in known else 'unexpected'} {name}")
        elif tensor.shape != target.shape:
            want, have = list(target.shape), list(tensor.shape)
            problems.append(f"{name} has shape {have}, expected {want}")
        else:
            target.copy_(tensor)
    problems += [f"missing {name}" for name in waiting]
    if problems:
        raise RunError(f"{folder}: weights do not fit config.json: " + _listed(problems))
    return model.ready()


def random_ar(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops = PLAIN,
    seed: int = 0,
) -> DualAR:
    """Random weights of the given sizes, made on the device: for measuring speed only.

    Matrices are normal with standard deviation 1 / sqrt(columns), norms are one, biases zero,
    so activations stay of order one at any width.
    """
    model = _empty(config, device, dtype, ops)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    return model.ready()


def _empty(config: ModelConfig, device: torch.device, dtype: torch.dtype, ops: Ops) -> DualAR:
    """The modules with memory behind them that nobody has written yet."""
    with torch.device("meta"):
        model = DualAR(config, ops)
    return model.to(dtype).to_empty(device=device)


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
