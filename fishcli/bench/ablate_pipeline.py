"""What each optimisation behind the engine is worth: hand-overs and the codec's batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from fishcli.bench.ablate import Ablation, Figures, compare
from fishcli.bench.batch import timed
from fishcli.channel import Channel
from fishcli.decoder import decode_rows
from fishcli.estimate import FRAME_RATE
from fishcli.pipeline.models import Models
from fishcli.records import FinishedCodes

# Frames of the shortest and longest row of a group of ROWS; a CPU takes long for more.
ROWS, FRAMES = 8, {"cuda": (43, 215), "cpu": (4, 16)}
ROW_S = 10.0  # audio of a row that is handed over
POLL_S = 0.001  # sleep between two looks of a polling thread
HANDOVERS, PAUSE_S, IDLE_S = 50, 0.0023, 0.2  # the pause is no multiple of POLL_S


def pipeline_ablations(models: Models) -> Iterator[Ablation]:
    """Every comparison, as it is measured."""
    yield _codec_batches(models)
    yield _device_tensors(models)
    yield compare(
        "condition variable instead of polling",
        f"a hand-over to a waiting thread; polls every {1000 * POLL_S:.0f} ms",
        lambda: _exchange(_Polled()),
        lambda: _exchange(Channel(1)),
    )


def _codec_batches(models: Models) -> Ablation:
    codec, device = models.codec, models.device
    shortest, longest = FRAMES[device.type]
    lengths = torch.linspace(shortest, longest, ROWS).long().tolist()
    smallest = min(codec.codebook_sizes)
    rows = [
        _row(torch.randint(smallest, (codec.num_codebooks, frames), device=device))
        for frames in lengths
    ]

    def decode(*, isolated: bool) -> Figures:
        seconds = timed(lambda: list(decode_rows(codec, rows, isolated=isolated)), device)
        return {"codec_ms": 1000 * seconds}

    return compare(
        "codec decoding in batches",
        f"{ROWS} rows of {shortest} to {longest} frames to PCM",
        lambda: decode(isolated=True),
        lambda: decode(isolated=False),
    )


def _row(codes: Tensor) -> FinishedCodes:
    return FinishedCodes("row", codes.int(), "stop")


def _device_tensors(models: Models) -> Ablation:
    frames = round(ROW_S * FRAME_RATE)
    codebooks = models.codec.num_codebooks
    codes = torch.zeros(codebooks, frames, dtype=torch.int32, device=models.device)
    channel: Channel[object] = Channel(1)

    def through_lists() -> None:
        channel.put(codes.tolist())
        torch.tensor(channel.get(), dtype=torch.int32).to(models.device)

    def as_tensors() -> None:
        channel.put(codes)
        channel.get()

    def handing(work: Callable[[], None]) -> Figures:
        return {"handover_ms": 1000 * timed(work, models.device)}

    return compare(
        "codes handed over as device tensors, not lists",
        f"{frames} frames of {codebooks} codes",
        lambda: handing(through_lists),
        lambda: handing(as_tensors),
    )


class _Exchange(Protocol):
    """How one thread gives another its next item."""

    def put(self, item: float) -> None: ...

    def get(self) -> float: ...


class _Polled:
    """A queue whose reader looks again and again."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[float] = queue.SimpleQueue()

    def put(self, item: float) -> None:
        self._queue.put(item)

    def get(self) -> float:
        while True:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                time.sleep(POLL_S)


def _exchange(exchange: _Exchange) -> Figures:
    """How late a waiting thread has its item, and what its waiting costs of a processor."""
    late: list[float] = []
    idle_cpu: list[float] = []

    def receive() -> None:
        for _ in range(HANDOVERS):
            sent = exchange.get()
            late.append(time.perf_counter() - sent)
        begun = time.thread_time()
        exchange.get()
        idle_cpu.append(time.thread_time() - begun)

    reader = threading.Thread(target=receive, name="reader")
    reader.start()
    for _ in range(HANDOVERS):
        time.sleep(PAUSE_S)
        exchange.put(time.perf_counter())
    time.sleep(IDLE_S)
    exchange.put(0.0)
    reader.join()
    return {
        "handover_ms": 1000 * sum(late) / HANDOVERS,
        "idle_cpu_ms_per_s": 1000 * idle_cpu[0] / IDLE_S,
    }
