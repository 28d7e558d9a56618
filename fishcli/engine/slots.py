"""The device's side of the slots: one tensor a property, one row a slot.

The host writes a slot when a row enters it and reads :class:`Snapshot`s with a lag;
everything between is done by the runner on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fishcli.kernels.sampling import RAS_WINDOW
from fishcli.model import ModelConfig
from fishcli.records import Request

RUNNING, STOPPED, OUT_OF_BUDGET = 0, 1, 2  # values of SlotState.outcome


@dataclass(frozen=True, slots=True, eq=False)
class SlotState:
    """State of all slots; every tensor's first dimension is the slot."""

    hidden: Tensor  # (slots, slow dim): the next frame is drawn from it
    position: Tensor  # (slots,) int64: where the next frame's keys and values go
    frame: Tensor  # (slots,) int64: frames generated so far
    budget: Tensor  # (slots,) int64
    outcome: Tensor  # (slots,) int64: RUNNING, STOPPED or OUT_OF_BUDGET
    ignore_stop: Tensor  # (slots,) bool
    seed: Tensor  # (slots,) int64
    temperature: Tensor  # (slots,) float32
    top_p: Tensor  # (slots,) float32
    top_k: Tensor  # (slots,) int64
    window: Tensor  # (slots, RAS_WINDOW) int64: recent semantic codes, -1 for none
    codes: Tensor  # (slots, capacity, codebooks) int32: the row's frames

    @classmethod
    def allocate(cls, config: ModelConfig, slots: int, capacity: int, like: Tensor) -> SlotState:
        """Empty slots with the device and (for ``hidden``) dtype of ``like``."""

        def full(*shape: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=like.device)

        return cls(
            hidden=like.new_zeros(slots, config.slow.dim),
            position=full(slots, value=0, dtype=torch.int64),
            frame=full(slots, value=0, dtype=torch.int64),
            budget=full(slots, value=0, dtype=torch.int64),
            outcome=full(slots, value=STOPPED, dtype=torch.int64),
            ignore_stop=full(slots, value=0, dtype=torch.bool),
            seed=full(slots, value=0, dtype=torch.int64),
            temperature=full(slots, value=1, dtype=torch.float32),
            top_p=full(slots, value=1, dtype=torch.float32),
            top_k=full(slots, value=1, dtype=torch.int64),
            window=full(slots, RAS_WINDOW, value=-1, dtype=torch.int64),
            # One spare column: a slot that has ended still writes, one past its last frame.
            codes=full(slots, capacity + 1, config.num_codebooks, value=0, dtype=torch.int32),
        )

    def rows(self, rows: slice) -> SlotState:
        """A view of some slots."""
        return SlotState(*(tensor[rows] for tensor in self.tensors()))

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [getattr(self, name) for name in self.__slots__]

    def enter(self, slots: Tensor, requests: Sequence[Request]) -> None:
        """Set up ``slots`` (rows,) for new rows; ``hidden`` is set by prefill."""

        def put(target: Tensor, values: list[float] | list[int] | list[bool]) -> None:
            source = torch.tensor(values, dtype=target.dtype)
            target.index_copy_(0, slots, source.to(target.device, non_blocking=True))

        put(self.position, [request.prompt.shape[1] for request in requests])
        put(self.budget, [request.max_frames for request in requests])
        put(self.ignore_stop, [request.ignore_stop for request in requests])
        put(self.seed, [request.seed for request in requests])
        put(self.temperature, [request.sampling.temperature for request in requests])
        put(self.top_p, [request.sampling.top_p for request in requests])
        put(self.top_k, [request.sampling.top_k for request in requests])
        self.frame.index_fill_(0, slots, 0)
        self.outcome.index_fill_(0, slots, RUNNING)
        self.window.index_fill_(0, slots, -1)


class Snapshot:
    """Frames and outcome of all slots at one moment, on their way to the host.

    On a GPU the copy is asynchronous; :meth:`read` waits only until the device has come
    to that moment, and the engine reads it when newer work is already queued.
    """

    def __init__(self, state: SlotState) -> None:
        both = torch.stack([state.frame, state.outcome])
        self._event: torch.cuda.Event | None = None
        if both.is_cuda:
            host = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
            self._host = host.copy_(both, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = both

    def read(self) -> tuple[list[int], list[int]]:
        """Frames and outcome of every slot."""
        if self._event is not None:
            self._event.synchronize()
        frames, outcomes = self._host.tolist()
        return frames, outcomes
