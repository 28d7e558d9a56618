"""Decoding and encoding against the golden results, and what causality promises."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from fishcli.codec import load_codec
from fishcli.codec import model as model_module
from tests.conftest import CPU, TOY, relative_error

GOLDEN_AUDIO = 3e-5
# Another batch shape may sum in another order, and the toy's random weights amplify that;
# what other rows or frames contain must not matter at all (see the tests of equal shapes).
SAME_ROW = 3e-5


@pytest.mark.parametrize("case", range(5))
def test_decode_agrees_with_the_golden_audio(codec, golden, case):
    audio = codec.decode(golden[f"decode.{case}.codes"])

    expected = golden[f"decode.{case}.audio"]
    assert audio.shape == expected.shape
    assert audio.dtype == torch.float32
    assert relative_error(audio, expected) < GOLDEN_AUDIO


@pytest.mark.parametrize("case", range(4))
def test_encode_agrees_with_the_golden_codes(codec, golden, case):
    codes = codec.encode(golden[f"encode.{case}.audio"][None])

    assert codes.dtype == torch.int32
    assert torch.equal(codes[0], golden[f"encode.{case}.codes"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_codes_out_of_range_are_clamped_and_the_callers_tensor_is_untouched(codec, dtype):
    codes = torch.full((1, 10, 3), 4095, dtype=dtype)
    codes[:, :, 1] = -7
    before = codes.clone()

    audio = codec.decode(codes)

    assert torch.equal(codes, before)
    sizes = torch.tensor(codec.codebook_sizes)[None, :, None]
    in_range = torch.minimum(codes.clamp(min=0), sizes - 1)
    assert torch.equal(audio, codec.decode(in_range))


def test_encode_leaves_the_callers_tensor_untouched(codec, golden):
    audio = golden["encode.1.audio"][None].clone()
    codec.encode(audio)
    assert torch.equal(audio[0], golden["encode.1.audio"])


@pytest.mark.parametrize(("rows", "frames"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_in_gives_nothing_out(codec, rows, frames):
    assert codec.decode(torch.zeros(rows, 10, frames, dtype=torch.int32)).shape == (
        rows,
        frames * codec.hop_length,
    )
    assert codec.encode(torch.zeros(rows, frames * 2048)).shape == (rows, 10, frames)


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (2048, 1), (2049, 2)])
def test_a_clip_has_a_frame_for_every_hop_begun(codec, samples, frames):
    assert codec.encode(torch.zeros(2, samples)).shape == (2, 10, frames)


def test_padding_on_the_right_does_not_change_a_row(codec, golden):
    codes = golden["decode.2.codes"]
    alone = codec.decode(codes)

    padded = codec.decode(F.pad(codes, (0, 23)))
    otherwise = codec.decode(F.pad(codes, (0, 23), value=63))

    assert padded.shape[1] == alone.shape[1] + 23 * codec.hop_length
    assert (padded[:, : alone.shape[1]] - alone).abs().max() < SAME_ROW
    assert torch.equal(padded[:, : alone.shape[1]], otherwise[:, : alone.shape[1]])
    assert not torch.equal(padded, otherwise)


def test_batch_mates_do_not_change_a_row(codec, golden):
    one = golden["decode.1.codes"]
    generator = torch.Generator().manual_seed(1)
    mates = torch.randint(0, 64, (2, 4, 10, one.shape[2]), generator=generator)

    first, second = (codec.decode(torch.cat([m[:2], one, m[2:]])) for m in mates)

    assert (first[2] - codec.decode(one)[0]).abs().max() < SAME_ROW
    assert torch.equal(first[2], second[2])
    assert not torch.equal(first[1], second[1])


def test_clips_of_unequal_length_encode_together_as_they_do_alone(codec, golden):
    clips = [golden[f"encode.{i}.audio"] for i in range(4)]
    longest = max(len(clip) for clip in clips)

    codes = codec.encode(torch.stack([F.pad(clip, (0, longest - len(clip))) for clip in clips]))

    for i, row in enumerate(codes):
        expected = golden[f"encode.{i}.codes"]
        assert torch.equal(row[:, : expected.shape[1]], expected)


def test_later_frames_do_not_change_earlier_samples(codec, golden):
    codes = golden["decode.3.codes"]
    changed = codes.clone()
    changed[:, :, 100:] = 63 - changed[:, :, 100:].clamp(max=63)
    cut = 100 * codec.hop_length

    a, b = codec.decode(codes), codec.decode(changed)

    assert torch.equal(a[:, :cut], b[:, :cut])
    assert (a[:, cut:] - b[:, cut:]).abs().max() > 0.01


@pytest.mark.parametrize("piece", [7, 64, 1000])
def test_the_size_of_a_piece_does_not_change_the_audio(codec, golden, monkeypatch, piece):
    monkeypatch.setattr(model_module, "PIECE_FRAMES", piece)
    audio = codec.decode(golden["decode.3.codes"])
    assert relative_error(audio, golden["decode.3.audio"]) < GOLDEN_AUDIO


def test_a_piece_looks_back_as_far_as_the_waveform_depends_on_and_no_further(codec):
    frames = codec._context_frames + 3
    latent = torch.randn(1, 128, frames, generator=torch.Generator().manual_seed(0))
    latent.requires_grad_(True)

    wave = codec.decoder(codec.quantizer.upsample(latent))
    wave[0, 0, -codec.hop_length :].square().sum().backward()

    reached = latent.grad.abs().sum((0, 1)) > 0
    assert reached.tolist() == [False, False] + [True] * (codec._context_frames + 1)


def test_bfloat16_decodes_close_to_float32(codec, golden):
    half = load_codec(TOY, CPU, torch.bfloat16)
    expected = golden["decode.1.audio"]

    audio = half.decode(golden["decode.1.codes"])

    assert half.dtype == torch.bfloat16
    assert audio.dtype == torch.float32
    noise = (audio - expected).square().mean() / expected.square().mean()
    assert noise < 0.05
    assert not torch.equal(audio, audio.bfloat16().float())  # no 8-bit steps in the waveform


def test_sizes_are_told(codec):
    assert (codec.sample_rate, codec.hop_length, codec.num_codebooks) == (44100, 2048, 10)
    assert codec.codebook_sizes == (256, *[64] * 9)
    assert codec.device == torch.device("cpu")


LONG_ROW = """
import resource, sys, torch
from pathlib import Path
from fishcli.codec import load_codec
torch.set_num_threads(1)
codec = load_codec(Path(sys.argv[1]), "cpu")
codec.decode(torch.zeros(1, 10, 300, dtype=torch.int32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
audio = codec.decode(torch.zeros(1, 10, 10_000, dtype=torch.int32))
print(audio.shape[1], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_row_of_10000_frames_decodes_in_little_more_memory_than_its_samples():
    run = [sys.executable, "-c", LONG_ROW, str(TOY)]
    answer = subprocess.run(run, capture_output=True, text=True, check=True)
    samples, megabytes = map(int, answer.stdout.split())
    assert samples == 10_000 * 2048
    assert megabytes < 250  # the samples are 82 MB; all pairs of 10,000 positions were 400
