"""Engines that would not keep their promise are refused."""

from dataclasses import replace

import pytest
import torch

from fishcli.checkpoint import resolve
from fishcli.errors import UsageError
from fishcli.kernels.ops import PLAIN, without_attention_kernel
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.memory import MemoryPlan
from fishcli.pipeline.models import load_models
from tests.conftest import CPU

MEMORY = MemoryPlan(2, 64, 4, 0, 0, None)


@pytest.mark.parametrize("ops", [PLAIN, without_attention_kernel(replace(PLAIN, name="fused"))])
def test_a_gpu_without_its_attention_kernel_is_not_deterministic(ops):
    models = load_models(resolve("mini", CPU), CPU, ops)
    on_gpu = replace(models, device=torch.device("cuda", 0))
    with pytest.raises(UsageError, match="needs the fused kernels"):
        build_engine(on_gpu, MEMORY, deterministic=True)


def test_a_cpu_is_deterministic_with_plain_operations():
    models = load_models(resolve("mini", CPU), CPU)
    assert build_engine(models, MEMORY, deterministic=True).settings.batching.isolated
