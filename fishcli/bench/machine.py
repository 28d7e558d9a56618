"""What a bench's figures depend on besides its settings: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fishcli.pipeline.summary import device_name


def machine(device: torch.device) -> dict[str, Any]:
    """The hardware and the versions."""
    try:
        import triton  # noqa: PLC0415 - not on every platform

        triton_version = str(triton.__version__)
    except ImportError:
        triton_version = "absent"
    return {
        "gpu": device_name(device) if device.type == "cuda" else "none",
        "gpus": 1 if device.type == "cuda" else 0,
        "cpu_cores": len(os.sched_getaffinity(0)),
        "torch": str(torch.__version__),
        "triton": triton_version,
        "python": platform.python_version(),
    }


def commit(here: Path = Path(__file__)) -> str:
    """The commit of the checkout that ``here`` is a file of, with ``+`` if it is changed.

    Empty without git, and for an installed copy, even one inside another project's checkout.
    """
    if not _git(here, "ls-files", "--", here.name):
        return ""
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")


def _git(here: Path, *command: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(here.parent), *command], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
