"""Shared test data: the toy checkpoint, its golden results, one thread setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(__file__).parent / "data" / "golden"
TOY = Path(__file__).parents[1] / "fishcli" / "checkpoints" / "toy"
CPU = torch.device("cpu")


def golden_tensors(name: str) -> dict[str, Tensor]:
    """The tensors of one golden file."""
    return load_file(GOLDEN / f"{name}.safetensors")


def golden_json(name: str) -> Any:
    """The description that goes with a golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest deviation in units of the largest expected value; NaN never passes."""
    deviation = (actual.double() - expected.double()).abs().max()
    return float(deviation / expected.double().abs().max())


@pytest.fixture(scope="session")
def toy_ar() -> Any:
    from fishcli.model import load_ar

    return load_ar(TOY, CPU, torch.float32)
