"""Sharing out the CPU."""

import threading

import pytest
import torch

from fishcli.threads import CpuThreads, torch_threads, use_torch_threads
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


def test_pinned_threads_do_not_depend_on_the_machine():
    with torch_threads(7):
        assert CpuThreads.for_device(CPU, pinned=True) == CpuThreads(1, 1)
        assert CpuThreads.for_device(CPU) != CpuThreads(1, 1)


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


def test_a_threads_number_stays_though_others_set_theirs_before_its_first_operation():
    before, chosen, others, seen = torch.get_num_threads(), threading.Event(), threading.Event(), []

    def work():
        use_torch_threads(1)
        chosen.set()
        others.wait(10)
        torch.randn(512, 512) @ torch.randn(512, 512)  # large enough to be parallel
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    chosen.wait(10)
    torch.set_num_threads(3)
    others.set()
    thread.join()
    torch.set_num_threads(before)
    assert seen == [1]
