"""How many slots and positions a run gets, and what is said when they do not fit."""

import pytest
import torch

from fishcli.audio import MAX_REFERENCE_SECONDS
from fishcli.engine import BLOCK_SIZE, bytes_per_token
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE
from fishcli.model import ModelConfig
from fishcli.pipeline import memory
from fishcli.pipeline.memory import Need, plan_memory
from tests.conftest import CPU, TOY

CONFIG = ModelConfig.from_folder(TOY)
CUDA = torch.device("cuda")
NEED = Need(prompt_columns=50, budget_frames=100, has_references=False)


def planned(need=NEED, slots=None, device=CPU, dtype=torch.float32):
    return plan_memory(CONFIG, 10**7, need, slots, device, dtype)


def row_bytes(capacity, dtype=torch.float32):
    blocks = -(-capacity // BLOCK_SIZE)
    return blocks * BLOCK_SIZE * bytes_per_token(CONFIG.slow, dtype)


def test_every_slot_can_hold_the_longest_row():
    plan = planned()
    assert plan.slots == memory.AUTO_SLOTS["cpu"]
    assert plan.capacity >= NEED.positions
    assert plan.capacity - NEED.positions < memory.CAPACITY_STEP
    assert plan.kv_bytes == plan.slots * row_bytes(plan.capacity)
    assert "memory plan: weights 0.01 GB" in str(plan)


def test_a_reference_may_take_all_it_is_allowed_to():
    with_reference = Need(50, 100, has_references=True)
    assert with_reference.positions - NEED.positions >= MAX_REFERENCE_SECONDS * FRAME_RATE


def test_no_row_is_longer_than_the_models_context():
    plan = planned(Need(50, 10**6, has_references=True))
    assert plan.capacity == CONFIG.slow.max_seq_len


@pytest.mark.parametrize("slots", [1, 5, 200])
def test_the_wanted_number_of_slots_is_taken_where_it_fits(slots):
    assert planned(slots=slots).slots == slots


def free(monkeypatch, size):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (size, 2 * size))


def test_a_gpu_with_room_is_filled_no_further_than_needed(monkeypatch):
    free(monkeypatch, 10**11)
    plan = planned(device=CUDA, dtype=torch.bfloat16)
    assert plan.slots == memory.AUTO_SLOTS["cuda"]
    assert plan.kv_bytes == plan.slots * row_bytes(plan.capacity, torch.bfloat16)
    assert (plan.free_bytes, plan.note) == (10**11, "")
    assert "100.0 GB free before it" in str(plan)


def test_a_gpu_with_less_room_says_what_that_means(monkeypatch):
    room = row_bytes(planned().capacity) * 5
    free(monkeypatch, memory.WORKING_BYTES + room)
    plan = planned(slots=8, device=CUDA)
    assert plan.kv_bytes <= room
    assert "5 of 8" in plan.note


def test_a_gpu_without_room_for_one_row_is_refused(monkeypatch):
    free(monkeypatch, memory.WORKING_BYTES + 1000)
    with pytest.raises(UsageError, match="smaller --max-new-tokens, a shorter reference"):
        planned(device=CUDA)
