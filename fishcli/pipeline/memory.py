"""How many slots, how long a row may be, how many blocks fit: said before the work begins."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fishcli.audio import MAX_REFERENCE_SECONDS
from fishcli.engine import BLOCK_SIZE, bytes_per_token
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE
from fishcli.model import ModelConfig
from fishcli.pipeline.models import Models
from fishcli.plan import Plan
from fishcli.prompt import PromptBuilder, Spoken

AUTO_SLOTS = {"cuda": 64, "cpu": 8}
CAPACITY_STEP = 64  # a row's positions are a multiple of this, or the model's whole context
WORKING_BYTES = 6 * 10**9  # activations of prefill and codec on a GPU
GB = 1e9


@dataclass(frozen=True, slots=True)
class Need:
    """What the rows of a run ask of a slot, all of them upper bounds."""

    prompt_columns: int  # columns of the longest prompt without its reference's frames
    budget_frames: int  # the largest budget
    has_references: bool

    @property
    def positions(self) -> int:
        """Positions of the longest row, reference included."""
        reference = int(MAX_REFERENCE_SECONDS * FRAME_RATE) + 1 if self.has_references else 0
        return self.prompt_columns + reference + self.budget_frames


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Slots of the engine, positions of the longest row, blocks of the cache; sizes in bytes."""

    slots: int
    capacity: int
    blocks: int
    kv_bytes: int
    weight_bytes: int
    free_bytes: int | None  # of the device, before the cache; None where it is not limited
    note: str = ""  # what does not fit, and what follows

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f", {self.free_bytes / GB:.1f} GB free before it"
        return (
            f"memory plan: weights {self.weight_bytes / GB:.2f} GB, cache "
            f"{self.kv_bytes / GB:.2f} GB ({self.blocks} blocks of {BLOCK_SIZE} positions for "
            f"{self.slots} slots, {self.capacity} positions in the longest row){free}"
        )


def memory_for(plan: Plan, models: Models, wanted_slots: int | None) -> MemoryPlan:
    """:func:`plan_memory` for the rows that ``plan`` has to do."""
    prompts = PromptBuilder(models.tokenizer, models.checkpoint.config)
    empty = Spoken("", torch.zeros(models.codec.num_codebooks, 0, dtype=torch.int32))
    frame = prompts.build("", [empty] if plan.distinct_references else [])
    need = Need(
        # A token is at least a byte, so the text's bytes bound its columns.
        prompt_columns=frame.shape[1] + plan.longest_prompt_bytes,
        budget_frames=plan.longest_budget,
        has_references=plan.distinct_references > 0,
    )
    config, weights = models.checkpoint.config, models.weight_bytes
    return plan_memory(config, weights, need, wanted_slots, models.device, models.dtype)


def plan_memory(
    config: ModelConfig,
    weight_bytes: int,
    need: Need,
    wanted_slots: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> MemoryPlan:
    """Fit the cache into what the device has left after the weights.

    ``wanted_slots`` None: AUTO_SLOTS. Blocks for every slot's longest row if there is room;
    with less, rows are admitted by their expected lengths, with a note. If not even one
    longest row fits, :class:`UsageError` says what is missing.
    """
    capacity = -(-need.positions // CAPACITY_STEP) * CAPACITY_STEP
    capacity = min(capacity, config.slow.max_seq_len)
    row_blocks = -(-capacity // BLOCK_SIZE)
    block_bytes = BLOCK_SIZE * bytes_per_token(config.slow, dtype)
    slots = wanted_slots or AUTO_SLOTS[device.type]
    blocks = slots * row_blocks
    free, note = None, ""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        room = (free - WORKING_BYTES) // block_bytes
        if room < row_blocks:
            needed = row_blocks * block_bytes + WORKING_BYTES
            raise UsageError(
                f"{free / GB:.1f} GB of device memory are free, one row of {capacity} positions "
                f"needs {needed / GB:.1f} GB: use a smaller --max-new-tokens, a shorter "
                "reference, or another device"
            )
        if room < blocks:
            longest = room // row_blocks
            note = (
                f"the cache holds {longest} of {slots} rows at their longest: rows are admitted "
                "by their expected lengths"
            )
            blocks = room
    return MemoryPlan(slots, capacity, blocks, blocks * block_bytes, weight_bytes, free, note)
