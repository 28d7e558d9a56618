"""Which device and which kernels a run gets."""

import pytest
import torch

from fishcli.errors import UsageError
from fishcli.kernels.ops import ATTENTION_SWITCH, PLAIN, Choice
from fishcli.pipeline import models
from fishcli.pipeline.models import pick_device, pick_ops
from tests.conftest import CPU

SECOND = torch.device("cuda", 1)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, as far as torch says; returns the devices made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_a_machine_without_a_gpu_computes_on_its_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(UsageError, match="no CUDA"):
        pick_device("cuda")


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_taken_by_its_number(two_gpus, name, index):
    assert pick_device(name) == torch.device("cuda", index)


def test_a_gpu_that_is_not_there_is_named(two_gpus):
    with pytest.raises(UsageError, match="device cuda:2: there are 2 CUDA devices"):
        pick_device("cuda:2")


def test_kernels_are_launched_on_the_gpu_that_was_asked_for(two_gpus, monkeypatch):
    """Triton, graphs and events take the current device, whatever their tensors are on."""
    seen = []

    def choose(device, switch):
        seen.append((device, switch, list(two_gpus)))
        return Choice(PLAIN)

    monkeypatch.setenv(ATTENTION_SWITCH, "required")
    monkeypatch.setattr(models, "choose_ops", choose)
    assert pick_ops(SECOND, pytest.fail) is PLAIN
    assert seen == [(SECOND, "required", [SECOND])]


def test_kernels_that_fail_are_told_of(two_gpus, monkeypatch):
    monkeypatch.setattr(models, "choose_ops", lambda *_: Choice(PLAIN, "no compiler"))
    notes = []
    assert pick_ops(SECOND, notes.append) is PLAIN
    assert notes == ["warning: plain PyTorch instead of fused kernels: no compiler"]


@pytest.mark.parametrize("value", ["required", "2"])
def test_a_switch_that_cannot_be_followed_is_a_usage_error(two_gpus, monkeypatch, value):
    monkeypatch.setenv(ATTENTION_SWITCH, value)
    monkeypatch.setattr("fishcli.kernels.ops.kernel_problem", lambda _: "no compiler")
    with pytest.raises(UsageError, match=ATTENTION_SWITCH):
        pick_ops(SECOND, pytest.fail)


def test_the_switch_is_of_no_account_on_a_cpu(monkeypatch):
    monkeypatch.setenv(ATTENTION_SWITCH, "required")
    assert pick_ops(CPU, pytest.fail) is PLAIN
