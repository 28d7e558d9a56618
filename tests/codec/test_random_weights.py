"""Random codecs sound like noise: neither silence nor a clipped square wave."""

import pytest
import torch

from fishcli.codec import random_codec
from tests.conftest import CPU


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_audio_is_finite_and_neither_silent_nor_saturated(codec, seed, dtype):
    made = random_codec(codec.config, CPU, dtype, seed)
    codes = torch.randint(0, 64, (2, 10, 30), generator=torch.Generator().manual_seed(seed))

    audio = made.decode(codes)

    rms = audio.square().mean(1).sqrt()
    assert audio.isfinite().all()
    assert ((rms > 0.01) & (rms < 0.5)).all()
    assert (audio.abs() > 0.99).float().mean() < 0.001


def test_encoding_uses_many_codes(codec):
    noise = torch.randn(1, 44100, generator=torch.Generator().manual_seed(0)) * 0.1
    codes = random_codec(codec.config, CPU).encode(noise)
    assert codes.unique().numel() > 20


def test_the_seed_decides_the_weights(codec):
    a, b, c = (random_codec(codec.config, CPU, seed=s).state_dict() for s in (5, 5, 6))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["decoder.model.0.conv.weight"], c["decoder.model.0.conv.weight"])
