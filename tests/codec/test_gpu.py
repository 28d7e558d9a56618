"""The golden results on a CUDA device."""

import pytest
import torch

from fishcli.codec import load_codec
from tests.conftest import TOY, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def cuda_codec():
    return load_codec(TOY, "cuda")


@pytest.fixture(autouse=True)
def full_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("case", range(5))
def test_decode_agrees_with_the_golden_audio(cuda_codec, golden, case):
    audio = cuda_codec.decode(golden[f"decode.{case}.codes"])
    assert audio.device.type == "cuda"
    assert relative_error(audio.cpu(), golden[f"decode.{case}.audio"]) < 3e-5


@pytest.mark.parametrize("case", range(4))
def test_encode_agrees_with_the_golden_codes(cuda_codec, golden, case):
    codes = cuda_codec.encode(golden[f"encode.{case}.audio"][None])
    assert torch.equal(codes[0].cpu(), golden[f"encode.{case}.codes"])


def test_bfloat16_decodes_close_to_float32(golden):
    audio = load_codec(TOY, "cuda", torch.bfloat16).decode(golden["decode.2.codes"]).cpu()
    expected = golden["decode.2.audio"]
    assert (audio - expected).square().mean() < 0.05 * expected.square().mean()
