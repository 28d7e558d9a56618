"""Which part of a run may use how many CPU threads: decided here, for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

CODEC_SHARE = 0.25  # of the threads; the AR takes most of the time of any real model


@dataclass(frozen=True, slots=True)
class CpuThreads:
    """Threads of torch for the engine and for the codec (decoding, encoding references).

    Both work at the same time. With all threads each they would wait for one another at
    every operation's end: on two cores a run takes several times as long. The numbers
    follow from the machine alone, so sums are split, and rounded, alike in every run.
    None leaves torch's own number.
    """

    engine: int | None
    codec: int | None

    @classmethod
    def for_device(cls, device: torch.device, *, pinned: bool = False) -> CpuThreads:
        """On a CPU the threads that torch would use are divided; a GPU needs no rule.

        ``pinned``: one each whatever the machine has, so that sums, and with them the bytes
        of a file, do not depend on its number of cores.
        """
        if device.type != "cpu":
            return cls(None, None)
        return cls(1, 1) if pinned else cls.share_out(torch.get_num_threads())

    @classmethod
    def share_out(cls, total: int) -> CpuThreads:
        """Divide ``total`` threads (≥ 1); each part gets at least one."""
        codec = max(1, round(CODEC_SHARE * total))
        return cls(max(1, total - codec), codec)


def use_torch_threads(count: int | None) -> None:
    """From now on operations of this thread use ``count`` threads; None: as before.

    Asking for the number first matters: a thread's first parallel operation otherwise takes
    over the number that was set last anywhere, and with it another order of sums.
    """
    torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Inside the block operations of this thread use ``count`` threads; None: as before."""
    before = torch.get_num_threads()
    use_torch_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
