"""The only part of the engine that touches the device: prefill, and one frame a call.

A frame begins with the hidden state its slot holds: draw the semantic token, run the
fast AR over the codebooks, store the codes, test for the end, then let the slow AR read
the new frame, which leaves the next hidden state. Prefill leaves the same, so new rows
join between any two frames. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fishcli.engine.cache import SlotCache
from fishcli.kernels.sampling import (
    CounterDraws,
    Draws,
    SamplingState,
    sample_residual,
    sample_semantic,
)
from fishcli.engine.slots import OUT_OF_BUDGET, RUNNING, STOPPED, SlotState, Snapshot
from fishcli.model import DualAR
from fishcli.model.fast import FrameCache
from fishcli.records import Request

MakeDraws = Callable[[Tensor, Tensor], Draws]  # (seed, frame) of the rows → their numbers


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring slots that run through one frame together.

    The half-open slot range [start, end); ``length`` bounds every row's cached positions
    including the new one; ``candidates`` bounds every row's top_k.
    """

    start: int
    end: int
    length: int
    candidates: int


class ModelRunner:
    """Owns the slots' tensors and runs the models over them."""

    def __init__(
        self, model: DualAR, slots: int, capacity: int, *, make_draws: MakeDraws = CounterDraws
    ) -> None:
        weight = model.slow.embeddings.weight
        config = model.config
        self.device = weight.device
        self._slow, self._fast = model.slow, model.fast
        self._config = config
        self._make_draws = make_draws
        self._cache = SlotCache(config.slow, slots, capacity, weight)
        self._frame_cache = FrameCache.allocate(config, slots, weight)
        self._state = SlotState.allocate(config, slots, capacity, weight)

    @torch.inference_mode()
    def prefill(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Read the prompts of new rows into their slots, all in one padded batch."""
        lengths = [request.prompt.shape[1] for request in requests]
        columns = torch.zeros(
            len(requests), max(lengths), 1 + self._config.num_codebooks, dtype=torch.int64
        )
        for row, request in enumerate(requests):
            columns[row, : lengths[row]] = request.prompt.T
        slot_index = self._to_device(torch.tensor(slots))
        last = self._to_device(torch.tensor(lengths)) - 1
        positions = torch.arange(max(lengths), device=self.device).expand(len(requests), -1)
        attend = self._cache.prefill(slot_index)
        hidden = self._slow(self._to_device(columns), positions, attend)
        rows = torch.arange(len(requests), device=self.device)
        self._state.hidden.index_copy_(0, slot_index, hidden[rows, last])
        self._state.enter(slot_index, requests)

    @torch.inference_mode()
    def frame(self, stretch: Stretch) -> None:
        """Generate one frame for every running slot of ``stretch``."""
        rows = slice(stretch.start, stretch.end)
        state = self._state.rows(rows)
        draws = self._make_draws(state.seed, state.frame)
        sampling = SamplingState(state.temperature, state.top_p, state.top_k, stretch.candidates)
        semantic = self._draw_semantic(state, sampling, draws)
        stopped = semantic == self._config.codebook_size
        first = semantic.masked_fill(stopped, 0)  # any valid code: the frame is not kept
        codes = self._draw_residuals(state.hidden, first, sampling, draws, rows)
        kept = self._record(state, codes, stopped)
        columns = torch.cat([first[:, None] + self._config.semantic_start, codes], dim=1)
        position = state.position.clamp_max(stretch.length - 1)  # ended slots stand still
        attend = self._cache.decode(rows, position, stretch.length)
        hidden = self._slow(columns[:, None], position[:, None], attend)
        state.hidden.copy_(hidden[:, 0])
        state.position.add_(kept)

    def snapshot(self) -> Snapshot:
        """Start copying what the host needs to know about the slots."""
        return Snapshot(self._state)

    def codes(self, slot: int, frames: int) -> Tensor:
        """A copy of a slot's first ``frames`` frames, on the device: (codebooks, frames) int32."""
        return self._state.codes[slot, :frames].T.clone()

    def _draw_semantic(self, state: SlotState, sampling: SamplingState, draws: Draws) -> Tensor:
        """(rows,) entries: semantic codes, or V for the stop."""
        logits = self._slow.logits(state.hidden)
        logits[:, -1].masked_fill_(state.ignore_stop, float("-inf"))
        return sample_semantic(logits, sampling, state.window, draws)

    def _draw_residuals(
        self, hidden: Tensor, first: Tensor, sampling: SamplingState, draws: Draws, rows: slice
    ) -> Tensor:
        """All codes of the frame, (rows, codebooks) int64, from the semantic ``first``."""
        cache = self._frame_cache.rows(rows)
        codes = [first]
        logits = self._fast.first(hidden, first, cache)
        codes.append(sample_residual(logits, sampling, draws, 1))
        for codebook in range(2, self._config.num_codebooks):
            logits = self._fast.next(codes[-1], codebook, cache)
            codes.append(sample_residual(logits, sampling, draws, codebook))
        return torch.stack(codes, dim=1)

    def _record(self, state: SlotState, codes: Tensor, stopped: Tensor) -> Tensor:
        """Store the frame where one was made and test for the end; returns (rows,) bool."""
        running = state.outcome == RUNNING
        kept = running & ~stopped
        index = state.frame.view(-1, 1, 1).expand(-1, 1, codes.shape[1])
        state.codes.scatter_(1, index, codes[:, None].to(state.codes.dtype))
        shifted = torch.cat([state.window[:, 1:], codes[:, :1]], dim=1)
        state.window.copy_(torch.where(kept[:, None], shifted, state.window))
        state.frame.add_(kept)
        state.outcome.masked_fill_(running & stopped, STOPPED)
        state.outcome.masked_fill_(kept & (state.frame >= state.budget), OUT_OF_BUDGET)
        return kept

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)
