"""Sharing out the CPU."""

import threading

import pytest
import torch

from fishcli.pipeline.threads import CpuThreads, torch_threads
from tests.conftest import CPU


@pytest.mark.parametrize(
    ("total", "engine", "codec"), [(1, 1, 1), (2, 1, 1), (4, 3, 1), (8, 6, 2), (64, 48, 16)]
)
def test_every_part_gets_threads_and_together_they_fit(total, engine, codec):
    assert CpuThreads.share_out(total) == CpuThreads(engine, codec)
    assert total == 1 or engine + codec == total


def test_a_gpu_leaves_the_numbers_alone():
    assert CpuThreads.for_device(torch.device("cuda")) == CpuThreads(None, None)
    assert CpuThreads.for_device(CPU).engine >= 1


def test_the_number_holds_inside_the_block_and_thread_only():
    before, seen = torch.get_num_threads(), []

    def inside():
        with torch_threads(3):
            seen.append(torch.get_num_threads())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert (seen, torch.get_num_threads()) == ([3], before)
    with pytest.raises(KeyError), torch_threads(2):
        assert torch.get_num_threads() == 2
        raise KeyError
    assert torch.get_num_threads() == before
    with torch_threads(None):
        assert torch.get_num_threads() == before
