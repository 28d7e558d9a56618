"""A checkpoint's models, loaded once and used by every part of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fishcli.checkpoint import Checkpoint
from fishcli.codec import Codec
from fishcli.errors import UsageError
from fishcli.kernels.ops import ATTENTION_SWITCH, PLAIN, Ops, choose_ops
from fishcli.model import DualAR
from fishcli.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Models:
    """Everything that has weights, on one device."""

    checkpoint: Checkpoint
    ar: DualAR
    codec: Codec
    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype  # of the transformers; the codec runs in float32
    load_s: float

    @property
    def weight_bytes(self) -> int:
        """Memory of all parameters."""
        parameters = [*self.ar.parameters(), *self.codec.parameters()]
        return sum(tensor.numel() * tensor.element_size() for tensor in parameters)


def pick_device(name: str) -> torch.device:
    """``auto``: the first CUDA device if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {name}: this machine or this torch has no CUDA")
        device = torch.device("cuda", device.index or 0)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise UsageError(f"device {name}: there are {torch.cuda.device_count()} CUDA devices")
    return device


def pick_ops(device: torch.device, note: Callable[[str], None]) -> Ops:
    """Fused kernels on a GPU, as FISHCLI_KVCACHE_ATTN says; ``note`` gets a line if they fail.

    Makes the GPU the calling thread's current one: kernels, graphs and events go there.
    """
    if device.type != "cuda":
        return PLAIN
    torch.cuda.set_device(device)
    try:
        choice = choose_ops(device, os.environ.get(ATTENTION_SWITCH, "1"))
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    if choice.problem:
        note(f"warning: plain PyTorch instead of fused kernels: {choice.problem}")
    return choice.ops


def load_models(checkpoint: Checkpoint, device: torch.device, ops: Ops = PLAIN) -> Models:
    """Load everything: bfloat16 transformers on a GPU, float32 on a CPU."""
    started = time.perf_counter()
    if device.type == "cuda":
        # TF32 convolutions would change the codes that a reference is encoded to.
        torch.backends.cudnn.allow_tf32 = False
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokenizer = checkpoint.load_tokenizer()
    ar = checkpoint.load_ar(device, dtype, ops)
    codec = checkpoint.load_codec(device, torch.float32)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    load_s = time.perf_counter() - started
    return Models(checkpoint, ar, codec, tokenizer, device, dtype, load_s)
