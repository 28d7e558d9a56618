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

from fishcli.engine.cache import BLOCK_SIZE, DecodeAttend, PagedCache, PrefillAttend
from fishcli.engine.graphs import FrameGraphs, GraphPool, PrefillGraphs
from fishcli.engine.prompts import Columns, PromptBatch
from fishcli.engine.scheduler import Stretch
from fishcli.engine.slots import OUT_OF_BUDGET, RUNNING, STOPPED, SlotState, Snapshot
from fishcli.kernels.sampling import CounterDraws, Draws, SamplingState
from fishcli.model import DualAR
from fishcli.model.fast import FrameCache
from fishcli.records import Request

MakeDraws = Callable[[Tensor, Tensor], Draws]  # (seed, frame) of the rows → their numbers
# Bound of top_k inside a captured frame, whose sampler may be plain PyTorch. With a row that has
# more the batch runs uncaptured: the same bits, but slower.
CANDIDATES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Swapped:
    """A row's state in a safe place while it has no slot; see :meth:`ModelRunner.swap_out`."""

    slot_state: list[Tensor]
    keys: Tensor
    values: Tensor


class ModelRunner:
    """Owns the slots' tensors and the cache, and runs the models over them.

    slots: rows at once; capacity: positions of the longest row; blocks: size of the cache.
    """

    def __init__(
        self,
        model: DualAR,
        slots: int,
        capacity: int,
        blocks: int,
        *,
        make_draws: MakeDraws = CounterDraws,
    ) -> None:
        weight = model.slow.embeddings.weight
        config = model.config
        self.device = weight.device
        self.blocks = blocks
        self._slow, self._fast = model.slow, model.fast
        self._ops = model.slow.ops
        self._config = config
        self._make_draws = make_draws
        self._cache = PagedCache(config.slow, slots, blocks, capacity, weight)
        self._frame_cache = FrameCache.allocate(config, slots, weight)
        self._state = SlotState.allocate(config, slots, capacity, weight)
        heads, head_dim = config.slow.heads, config.slow.head_dim
        positions = self._cache.table.shape[1] * BLOCK_SIZE
        self._workspace = self._ops.attention_workspace(
            slots, heads, head_dim, positions, self.device
        )
        self._frames: FrameGraphs | None = None
        self._prompts: PrefillGraphs | None = None

    @torch.inference_mode()
    def capture(self, ranges: Sequence[slice]) -> None:
        """Capture the frame of each slot range as a CUDA graph, which :meth:`frame` replays
        from now on; reading prompts is captured shape by shape when it comes up."""
        pool = GraphPool(self.device)
        self._frames = FrameGraphs(pool, self._captured_frame, ranges)
        self._prompts = PrefillGraphs(pool, self._read)

    @torch.inference_mode()
    def read(self, items: Sequence[Columns]) -> Tensor:
        """Run the slow AR over new columns of several rows, one padded batch.

        Returns the hidden state of each item's last column, (items, dim), which the next
        call may overwrite.
        """
        columns = max(item.grid.shape[1] for item in items)
        if self._prompts is not None and (shape := self._prompts.shape(len(items), columns)):
            batch = PromptBatch.of(items, *shape, self._cache.table.shape[1])
            return self._prompts.replay(batch.to(self.device))[: len(items)]
        blocks = max(len(item.table) for item in items)
        batch = PromptBatch.of(items, len(items), columns, blocks)
        return self._read(batch.to(self.device))

    @torch.inference_mode()
    def enter(self, slots: Sequence[int], requests: Sequence[Request], hidden: Tensor) -> None:
        """Start rows whose prompts are read: hidden (rows, dim) of their last columns."""
        index = self._to_device(torch.tensor(slots))
        self._state.hidden.index_copy_(0, index, hidden)
        self._state.enter(index, requests)

    def set_table(self, tables: list[list[int]]) -> None:
        """Tell the device which blocks every slot has."""
        self._cache.set_table(tables)

    @torch.inference_mode()
    def frame(self, stretch: Stretch) -> None:
        """Generate one frame for every running slot of ``stretch``."""
        if self._frames is not None and stretch.candidates <= CANDIDATES:
            self._frames.replay(stretch.start, stretch.end)
            return
        blocks = -(-stretch.length // BLOCK_SIZE)
        self._frame(slice(stretch.start, stretch.end), blocks, stretch.candidates)

    def snapshot(self) -> Snapshot:
        """Start copying what the host needs to know about the slots."""
        return Snapshot(self._state)

    def codes(self, slot: int, frames: int) -> Tensor:
        """A copy of a slot's first ``frames`` frames, on the device: (codebooks, frames) int32."""
        return self._state.codes[slot, :frames].T.clone()

    @torch.inference_mode()
    def swap_out(self, slot: int, blocks: list[int]) -> Swapped:
        """Copy a row's state, and its keys and values (to the host), as they are after all
        frames queued so far."""
        keys, values = self._cache.gather(blocks)
        state = [tensor[slot].clone() for tensor in self._state.tensors()]
        self._state.outcome[slot] = STOPPED  # what the slot still computes must count for nothing
        return Swapped(state, keys.to("cpu"), values.to("cpu"))

    @torch.inference_mode()
    def swap_in(self, slot: int, blocks: list[int], swapped: Swapped) -> None:
        """Put a row back, into any slot and blocks."""
        self._cache.scatter(blocks, swapped.keys, swapped.values)
        for tensor, value in zip(self._state.tensors(), swapped.slot_state, strict=True):
            tensor[slot] = value

    def _read(self, batch: PromptBatch) -> Tensor:
        """Hidden state of each row's last new column, (rows, dim)."""
        attend = PrefillAttend(
            self._cache, self._ops, self._slow.rope, batch.table, batch.starts, batch.lengths
        )
        hidden: Tensor = self._slow(batch.grids, attend)  # (rows, columns, dim)
        rows = torch.arange(hidden.shape[0], device=self.device)
        return hidden[rows, batch.lengths - 1]

    def _captured_frame(self, rows: slice) -> None:
        self._frame(rows, self._cache.table.shape[1], CANDIDATES)

    def _frame(self, rows: slice, blocks: int, candidates: int) -> None:
        """``blocks``: columns of the table that any row may use."""
        state = self._state.rows(rows)
        draws = self._make_draws(state.seed, state.frame)
        sampling = SamplingState(state.temperature, state.top_p, state.top_k, candidates)
        semantic = self._ops.sample_semantic(
            self._slow.logits(state.hidden), sampling, state.window, draws, state.ignore_stop
        )
        stopped = semantic == self._config.codebook_size
        first = semantic.masked_fill(stopped, 0)  # any valid code: the frame is not kept
        codes = self._draw_residuals(state.hidden, first, sampling, draws, rows)
        kept = self._record(state, codes, stopped)
        columns = torch.cat([first[:, None] + self._config.semantic_start, codes], dim=1)
        # Ended slots stand still, behind their last position: inside the table and the RoPE.
        last_position = min(blocks * BLOCK_SIZE, self._slow.rope.shape[0]) - 1
        position = state.position.clamp_max(last_position)
        table = self._cache.table[rows, :blocks]
        attend = DecodeAttend(
            self._cache, self._ops, self._workspace, self._slow.rope, table, position
        )
        state.hidden.copy_(self._slow(columns, attend))
        state.position.add_(kept)

    def _draw_residuals(
        self, hidden: Tensor, first: Tensor, sampling: SamplingState, draws: Draws, rows: slice
    ) -> Tensor:
        """All codes of the frame, (rows, codebooks) int64, from the semantic ``first``."""
        cache = self._frame_cache.rows(rows)
        codes = [first]
        logits = self._fast.first(hidden, first, cache)
        codes.append(self._ops.sample_residual(logits, sampling, draws, 1))
        for codebook in range(2, self._config.num_codebooks):
            logits = self._fast.next(codes[-1], codebook, cache)
            codes.append(self._ops.sample_residual(logits, sampling, draws, codebook))
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
