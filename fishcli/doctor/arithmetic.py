"""Reduced precision against float32.

Reduced precision moves the logits of a trained model by one or two percent of the
largest. What is more than that by far, or not finite, points at a fault.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fishcli.checkpoint import Checkpoint
from fishcli.doctor.finding import Finding, judge
from fishcli.kernels import reference
from fishcli.kernels.ops import PLAIN
from fishcli.kernels.reference import Heads
from fishcli.model.fast import FrameCache
from fishcli.pipeline.models import pick_ops
from fishcli.prompt import PromptBuilder

TEXT = "The birch canoe slid on the smooth planks."
LOGITS_TOLERANCE = 0.05  # of the largest float32 value
CODEC_SNR_DB = 20.0
CODEC_FRAMES = 64


def compare_arithmetic(checkpoint: Checkpoint, device: torch.device) -> Iterator[Finding]:
    """bfloat16 against float32 on ``device``, transformers first, then the codec.

    Only one copy of the transformers is loaded at a time. TF32 would make float32 inexact.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield from _compare_transformers(checkpoint, device)
        yield from _compare_codec(checkpoint, device)


def _compare_transformers(checkpoint: Checkpoint, device: torch.device) -> Iterator[Finding]:
    exact = _logits(checkpoint, device, torch.float32)
    rounded = _logits(checkpoint, device, torch.bfloat16)
    for subject, wide, narrow in zip(("slow logits", "fast logits"), exact, rounded, strict=True):
        yield _compare_logits(subject, wide, narrow)


@torch.inference_mode()
def _logits(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Semantic logits at each position of a prompt, and the first residual logits after it."""
    fast_path = dtype == torch.bfloat16  # what a run on a GPU uses; float32 stays plain
    model = checkpoint.load_ar(
        device, dtype, pick_ops(device, _say_nothing) if fast_path else PLAIN
    )
    prompt = PromptBuilder(checkpoint.load_tokenizer(), checkpoint.config).build(TEXT)
    columns = prompt.T.long().to(device)[None]  # (1, length, 1 + codebooks)
    rope = model.slow.rope[: columns.shape[1]]

    def attend(_layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        return reference.causal_attention(*reference.split_qkv(qkv, heads, rope)).flatten(2)

    hidden = model.slow(columns, attend)  # (1, length, dim)
    code = torch.zeros(1, dtype=torch.long, device=device)  # the same in both precisions
    cache = FrameCache.allocate(checkpoint.config, 1, hidden)
    fast = model.fast.first(hidden[:, -1], code, cache)
    return model.slow.logits(hidden[0]).float().cpu(), fast.float().cpu()


def _say_nothing(_line: str) -> None:
    """The examination of the machine tells of kernels that don't work."""


def _compare_logits(subject: str, exact: Tensor, rounded: Tensor) -> Finding:
    if not (exact.isfinite().all() and rounded.isfinite().all()):
        return Finding("FAIL", subject, "not finite")
    error = float((rounded - exact).abs().max() / exact.abs().max())
    text = f"bfloat16 is {error:.2%} of the largest value away from float32"
    return judge(error <= LOGITS_TOLERANCE, subject, f"{text} (allowed {LOGITS_TOLERANCE:.0%})")


@torch.inference_mode()
def _compare_codec(checkpoint: Checkpoint, device: torch.device) -> Iterator[Finding]:
    """Decode noise's codes in every precision the device has; float16 may overflow."""
    generator = torch.Generator().manual_seed(0)
    exact = checkpoint.load_codec(device, torch.float32)
    noise = torch.randn(1, CODEC_FRAMES * exact.hop_length, generator=generator) * 0.1
    codes = exact.encode(noise.to(device))
    wanted = exact.decode(codes).float()
    yield judge(bool(wanted.isfinite().all()), "codec", "float32 audio is finite")
    for dtype in (torch.bfloat16, torch.float16):
        name = f"codec in {str(dtype).removeprefix('torch.')}"
        audio = checkpoint.load_codec(device, dtype).decode(codes).float()
        infinite = int((~audio.isfinite()).sum())
        noise_power = (audio - wanted).square().mean()
        snr_db = float(10 * torch.log10(wanted.square().mean() / noise_power))
        text = f"signal to noise {snr_db:.1f} dB against float32, {infinite} samples not finite"
        yield Finding("ok" if not infinite and snr_db >= CODEC_SNR_DB else "--", name, text)
