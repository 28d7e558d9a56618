"""Runs the models over forced codes, as the golden files were made."""

import torch

from fishcli.engine import BLOCK_SIZE
from fishcli.engine.cache import DecodeAttend, PagedCache, PrefillAttend
from fishcli.model.fast import FrameCache
from tests.conftest import golden_json, golden_tensors

NAMES = [case["name"] for case in golden_json("prompts")["cases"]]
FORCED_FRAMES = 6
CAPACITY = 512


@torch.inference_mode()
def teacher_forced(model, name):
    """semantic logits with the stop last (7, V + 1), fast inputs (7, dim), residuals (6, 9, V).

    On the model's device, through its operations, with a prompt read at once and then one
    position after another.
    """
    weight, ops, config = model.slow.embeddings.weight, model.slow.ops, model.config
    device = weight.device
    prompt = golden_tensors("prompts")[f"prompt.{name}"].long().to(device)
    codes = golden_tensors("forced")[f"{name}.forced_codes"].long().to(device)
    frames = torch.cat([codes[:1] + config.semantic_start, codes])
    columns, length = torch.cat([prompt, frames], dim=1), prompt.shape[1]
    blocks = CAPACITY // BLOCK_SIZE
    cache = PagedCache(config.slow, 1, blocks, CAPACITY, weight)
    table = torch.arange(1, blocks + 1, dtype=torch.int32, device=device)[None]
    rope, slow = model.slow.rope, config.slow
    workspace = ops.attention_workspace(1, slow.heads, slow.head_dim, CAPACITY, device)
    starts, lengths = torch.tensor([[0], [length]], device=device)
    attend = PrefillAttend(cache, ops, rope, table, starts, lengths)
    hidden = [model.slow(columns.T[None, :length], attend)[:, -1]]
    for position in range(length, length + FORCED_FRAMES):
        at = torch.tensor([position], device=device)
        attend = DecodeAttend(cache, ops, workspace, rope, table, at)
        hidden.append(model.slow(columns[None, :, position], attend))
    states = torch.cat(hidden)
    residual = _residuals(model, states[:FORCED_FRAMES], codes.T)
    return model.slow.logits(states), model.fast.project(states), residual


def _residuals(model, hidden, codes):
    """All frames as one batch of rows: hidden (frames, dim), codes (frames, codebooks)."""
    cache = FrameCache.allocate(model.config, len(hidden), model.slow.embeddings.weight)
    logits = [model.fast.first(hidden, codes[:, 0], cache)]
    for codebook in range(2, model.config.num_codebooks):
        logits.append(model.fast.next(codes[:, codebook - 1], codebook, cache))
    return torch.stack(logits, dim=1)
