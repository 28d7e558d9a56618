"""Windowed attention, the rotary table, and memory of long rows."""

import pytest
import torch
import torch.nn.functional as F

from fishcli.codec import transformer
from fishcli.codec.transformer import RotaryTable, rotary_table, windowed_attention


def dense_attention(q, k, v, window):
    """The definition: one mask over all pairs."""
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None, :]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill((distance < 0) | (distance >= window), float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("time", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("window", [1, 5, 64])
def test_attention_in_blocks_is_the_definition(monkeypatch, time, window):
    monkeypatch.setattr(transformer, "QUERY_BLOCK", 8)
    torch.manual_seed(time)
    q, k, v = torch.randn(3, 2, 3, time, 16)
    got = windowed_attention(q, k, v, window)
    assert torch.allclose(got, dense_attention(q, k, v, window), atol=1e-6)


def test_attention_never_sees_more_keys_than_a_block_needs(monkeypatch):
    seen = []

    def spy(q, k, v, attn_mask):
        seen.append((q.shape[2], k.shape[2], tuple(attn_mask.shape)))
        return torch.zeros_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    x = torch.zeros(1, 2, 10_000, 4)
    windowed_attention(x, x, x, 128)

    block = transformer.QUERY_BLOCK
    assert sum(queries for queries, _, _ in seen) == 10_000
    assert max(keys for _, keys, _ in seen) <= block + 127
    assert all(mask == (queries, keys) for queries, keys, mask in seen)


def test_the_rotary_table_is_rounded_to_bfloat16():
    table = rotary_table(100)
    assert torch.equal(table, table.bfloat16().float())
    exact = torch.cos(torch.tensor(99.0))
    assert table[99, 0, 0] == exact.bfloat16().float()
    assert table[99, 0, 0] != exact


def test_the_rotary_table_grows_past_any_length_and_keeps_its_rows():
    table = RotaryTable()
    few = table.rows(3, torch.device("cpu")).clone()
    many = table.rows(5000, torch.device("cpu"))
    assert many.shape == (5000, 32, 2)
    assert torch.equal(many[:3], few)
    assert torch.equal(table.rows(3, torch.device("cpu")), few)


def test_positions_go_on_past_the_stored_buffer(codec):
    """The toy stores 64 rows of its table; a longer row must not start again or fail."""
    codes = torch.randint(0, 64, (1, 10, 80), generator=torch.Generator().manual_seed(0))
    assert codec.decode(codes).isfinite().all()


def test_the_norm_is_told_apart_from_other_epsilons():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 1e-2
    norm = transformer.RMSNorm(64)
    assert torch.allclose(norm(x), F.rms_norm(x, (64,), eps=1e-5), atol=1e-5)
    assert not torch.allclose(norm(x), F.rms_norm(x, (64,), eps=1e-6), atol=1e-3)
