"""The decoder thread: finished codes in, PCM out.

Codes arrive as device tensors, in groups, through a bounded channel; a group is decoded
in codec calls of bounded size, and each goes on as PCM on the host. What is decoded
together depends on the group alone, never on timing, so runs repeat.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fishcli.channel import Channel
from fishcli.codec import Codec
from fishcli.records import FinishedCodes
from fishcli.threads import use_torch_threads

GROUPS_IN_FLIGHT = 4  # groups waiting for the codec; a full channel holds the engine back
# Frames, padding counted, of one codec call. It bounds memory and how long a call lasts; on
# a CPU larger calls are slower, because what they compute no longer fits the caches.
CALL_FRAMES = {"cuda": 2048, "cpu": 128}

Pcm = npt.NDArray[np.int16] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRow:
    """A row's audio on the host.

    pcm: (samples,) int16, or float32 for formats of other precision; empty where the row
    has no frames. ``clipped`` counts samples beyond ±1, which were clamped; with
    ``finite`` False the audio is useless.
    """

    row: FinishedCodes
    pcm: Pcm
    clipped: int
    finite: bool
    decoded: float  # time.perf_counter()


def decode_rows(
    codec: Codec, rows: Sequence[FinishedCodes], *, int16: bool = True, isolated: bool = False
) -> Iterator[list[DecodedRow]]:
    """Decode ``rows``, similar lengths together, and yield the rows of each codec call.

    ``isolated``: every row in a call of its own, so that its samples depend on it alone.
    """
    for batch in _batches(rows, 0 if isolated else CALL_FRAMES[codec.device.type]):
        yield _decode_batch(codec, batch, int16=int16)


def _batches(rows: Sequence[FinishedCodes], most: int) -> Iterator[list[FinishedCodes]]:
    """Rows by length, longest first; several share a batch up to ``most`` padded frames."""
    batch: list[FinishedCodes] = []
    for row in sorted(rows, key=lambda row: -row.codes.shape[1]):
        if batch and (len(batch) + 1) * batch[0].codes.shape[1] > most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@torch.inference_mode()
def _decode_batch(codec: Codec, rows: list[FinishedCodes], *, int16: bool) -> list[DecodedRow]:
    frames = [row.codes.shape[1] for row in rows]
    codes = torch.zeros(
        len(rows), codec.num_codebooks, max(frames), dtype=torch.int32, device=codec.device
    )
    for index, row in enumerate(rows):
        codes[index, :, : frames[index]] = row.codes
    audio = codec.decode(codes)  # (rows, samples)
    samples = torch.tensor(frames, device=audio.device) * codec.hop_length
    own = torch.arange(audio.shape[1], device=audio.device) < samples[:, None]
    finite = (audio.isfinite() | ~own).all(-1)
    clipped = ((audio.abs() > 1.0) & own).sum(-1)
    pcm, counts = _to_host(audio, int16=int16), torch.stack([finite.long(), clipped]).cpu()
    now = time.perf_counter()
    return [
        DecodedRow(
            row=row,
            pcm=pcm[index, : frames[index] * codec.hop_length],
            clipped=int(counts[1, index]),
            finite=bool(counts[0, index]),
            decoded=now,
        )
        for index, row in enumerate(rows)
    ]


def _to_host(audio: Tensor, *, int16: bool) -> Pcm:
    """Clamped samples: int16 is made on the device, which halves the copy."""
    clamped = audio.clamp(-1.0, 1.0)
    if int16:
        clamped = (clamped * 32767.0).round().to(torch.int16)
    pcm: Pcm = clamped.cpu().numpy()
    return pcm


class DecoderThread:
    """Runs :func:`decode_rows` over the groups it is given and passes the results on.

    ``sink`` is called in the thread with the rows of each codec call. An error in either is
    given to ``on_error`` and the thread takes nothing more. ``threads``: of torch, for the
    codec on a CPU; None leaves torch's own number.
    """

    def __init__(
        self,
        codec: Codec,
        sink: Callable[[list[DecodedRow]], None],
        on_error: Callable[[BaseException], None],
        *,
        int16: bool = True,
        isolated: bool = False,
        threads: int | None = None,
    ) -> None:
        self._codec = codec
        self._sink = sink
        self._on_error = on_error
        self._int16 = int16
        self._isolated = isolated
        self._threads = threads
        self._failed = False
        self._channel: Channel[list[FinishedCodes]] = Channel(GROUPS_IN_FLIGHT)
        self.busy_s = 0.0  # time spent decoding
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()

    def put(self, group: list[FinishedCodes]) -> None:
        """Hand over finished rows; waits while GROUPS_IN_FLIGHT groups are waiting."""
        self._channel.put(group)

    def close(self) -> None:
        """No more groups will come; what is queued is still decoded, then the thread ends."""
        self._channel.close()

    def join(self, timeout: float) -> bool:
        """Wait for the thread, ``timeout`` seconds at most; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def fail(self, error: BaseException) -> None:
        """Drop what is queued, end after the running call; :meth:`put` raises ``error``."""
        self._failed = True
        self._channel.fail(error)

    def _run(self) -> None:
        try:
            use_torch_threads(self._threads)
            for group in self._channel:
                self._decode(group)
        except BaseException as error:  # noqa: BLE001 - handed to the pipeline, which raises it
            self._on_error(error)

    def _decode(self, group: list[FinishedCodes]) -> None:
        started = time.perf_counter()
        for decoded in decode_rows(self._codec, group, int16=self._int16, isolated=self._isolated):
            self.busy_s += time.perf_counter() - started
            self._sink(decoded)
            if self._failed:
                return
            started = time.perf_counter()
