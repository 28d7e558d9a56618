"""What this machine can run, and why not. Nothing is downloaded, no weights are loaded."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import soundfile
import torch

from fishcli import asr, hub
from fishcli.checkpoint import AUTO_FREE_BYTES, S2_PRO, check_files, resolve
from fishcli.doctor.finding import Finding, judge
from fishcli.errors import FishError, RunError, UsageError
from fishcli.pipeline.models import pick_ops

GB = 1e9
LOW_DISK_BYTES = 5 * 10**9


def examine_machine() -> Iterator[Finding]:
    """Everything that decides what can run here, line by line."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("ok", "torch", torch.__version__)
    yield _triton()
    yield from _devices()
    yield _fast_path()
    yield Finding("ok", "libsndfile", soundfile.__libsndfile_version__)
    yield _mini()
    yield _s2_pro()
    yield _recognition()
    yield _disk(Path.cwd())


def _triton() -> Finding:
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return Finding("--", "triton", f"not usable ({error}): plain PyTorch runs instead")
    return Finding("ok", "triton", metadata.version("triton"))


def _devices() -> Iterator[Finding]:
    count = torch.cuda.device_count()
    if not count:
        why = (
            "this torch is built without CUDA" if torch.version.cuda is None else "none is visible"
        )
        yield Finding("--", "cuda", f"{why}: everything runs on {os.cpu_count()} CPU cores")
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        text = f"{name}, {free / GB:.1f} of {total / GB:.1f} GB free"
        yield Finding("ok", f"cuda:{index}", text)


def _fast_path() -> Finding:
    """Whether the fused kernels work; broken ones cost speed, not the run."""
    if not torch.cuda.is_available():
        return Finding("--", "kernels", "plain PyTorch: fused kernels need a CUDA device")
    problems: list[str] = []
    try:
        ops = pick_ops(torch.device("cuda"), problems.append)
    except UsageError as error:
        return Finding("FAIL", "kernels", str(error))
    return judge(not problems, "kernels", "; ".join(problems) or ops.name)


def _mini() -> Finding:
    try:
        found = resolve("mini", torch.device("cpu"))
    except FishError as error:
        return Finding("FAIL", "mini", str(error))
    return Finding("ok", "mini", f"shipped with fishcli ({'; '.join(found.notices)})")


def _s2_pro() -> Finding:
    folder = hub.cached_folder(S2_PRO)
    if folder is None:
        return Finding("--", S2_PRO, "not on disk; `--model s2-pro` downloads it")
    try:
        check_files(folder)
    except RunError as error:
        return Finding("--", S2_PRO, f"on disk in part ({error}); `--model s2-pro` gets the rest")
    room = [
        index
        for index in range(torch.cuda.device_count())
        if torch.cuda.mem_get_info(index)[0] >= AUTO_FREE_BYTES
    ]
    fits = f"fits cuda:{room[0]}" if room else "no CUDA device has room for it"
    return Finding("ok", S2_PRO, f"on disk in {folder}; {fits}")


def _recognition() -> Finding:
    try:
        metadata.version("faster-whisper")
        return Finding("ok", "speech recognition", asr.find_model())
    except metadata.PackageNotFoundError:
        return Finding("--", "speech recognition", f"not installed: {asr.INSTALL_HINT}")
    except asr.AsrUnavailableError as error:
        return Finding("--", "speech recognition", str(error))


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / GB:.1f} GB free in {folder}; an hour of PCM_16 audio takes 0.32 GB"
    return judge(free >= LOW_DISK_BYTES, "disk", text)
