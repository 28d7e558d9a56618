"""The first contact with a model's weights: files, tensors, token ids, and then a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fishcli.checkpoint import Checkpoint, resolve
from fishcli.doctor.arithmetic import compare_arithmetic
from fishcli.doctor.finding import Finding
from fishcli.doctor.speech import speak
from fishcli.errors import FishError, RunError
from fishcli.pipeline.models import pick_device


def examine_model(name: str, device_name: str, spoken: Path | None) -> Iterator[Finding]:
    """Load the model ``name`` strictly; with a folder ``spoken`` also try what it computes.

    The sentences of the trial are left in that folder. A part that cannot be loaded ends
    the examination.
    """
    try:
        device = pick_device(device_name)
        checkpoint = resolve(name, device)
    except FishError as error:
        yield Finding("FAIL", "files", str(error))
        return
    yield Finding("ok", "files", f"{checkpoint.name}, identity {checkpoint.identity}")
    for notice in checkpoint.notices:
        yield Finding("--", "notice", notice)
    loads = list(_strict_loads(checkpoint, device))
    yield from loads
    if spoken is None or any(finding.verdict == "FAIL" for finding in loads):
        return
    try:
        yield from compare_arithmetic(checkpoint, device)
        yield from speak(checkpoint, device_name, spoken)
    except FishError as error:
        yield Finding("FAIL", "trial", str(error))


def _strict_loads(checkpoint: Checkpoint, device: torch.device) -> Iterator[Finding]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("tokenizer", checkpoint.load_tokenizer),
        ("transformers", lambda: checkpoint.load_ar(device, dtype)),
        ("codec", lambda: checkpoint.load_codec(device, torch.float32)),
    )
    for subject, load in parts:
        try:
            part = load()
        except RunError as error:
            yield Finding("FAIL", subject, str(error))
            continue
        if isinstance(part, torch.nn.Module):
            size = sum(parameter.numel() for parameter in part.parameters())
            yield Finding("ok", subject, f"every tensor fits, {size / 1e6:.1f} M parameters")
        elif checkpoint.folder is None:
            yield Finding("--", subject, "hashed words stand in for one")
        else:
            yield Finding("ok", subject, "token ids agree with config.json")
