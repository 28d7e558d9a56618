"""Sizes read from shapes, at full size too."""

import dataclasses
import json

import pytest

from fishcli.codec import Codec, CodecConfig
from fishcli.codec.config import folded_name, folded_shapes
from fishcli.errors import RunError
from tests.conftest import GOLDEN


@pytest.fixture(scope="module")
def shapes():
    path = GOLDEN.parent / "s2-pro-shapes.json"
    return json.loads(path.read_text(encoding="utf-8"))["codec"]


def test_the_full_size_codec_has_exactly_the_published_shapes(shapes):
    config = CodecConfig.from_shapes(shapes)
    built = {name: tuple(p.shape) for name, p in Codec.empty(config).state_dict().items()}
    assert built == folded_shapes(shapes)
    assert (config.hop_length, config.num_codebooks) == (2048, 10)
    assert config.codebook_sizes == (4096, *[1024] * 9)
    assert (config.quantizer_window, config.encoder_window) == (128, 512)


def test_folded_shapes_read_as_the_pairs_they_came_from(shapes):
    assert CodecConfig.from_shapes(folded_shapes(shapes)) == CodecConfig.from_shapes(shapes)


@pytest.mark.parametrize(
    ("entry", "parameter"),
    [
        ("a.conv.parametrizations.weight.original1", "a.conv.weight"),
        ("a.conv.parametrizations.weight.original0", None),
        ("a.in_proj.weight_v", "a.in_proj.weight"),
        ("a.in_proj.weight_g", None),
        ("a.freqs_cis", None),
        ("a.causal_mask", None),
        ("a.conv.bias", "a.conv.bias"),
    ],
)
def test_entries_map_to_parameters(entry, parameter):
    assert folded_name(entry) == parameter


@pytest.mark.parametrize(
    "change",
    [
        {"quantizer_window": 0},
        {"encoder_window": -1},
        {"decoder_strides": (8, 8, 4, 4)},
        {"encoder_strides": (2, 4, 8)},
        {"latent_dim": 100},
    ],
)
def test_sizes_that_make_no_codec_are_refused_by_name(shapes, change):
    config = CodecConfig.from_shapes(shapes)
    with pytest.raises(RunError, match=next(iter(change)).split("_")[0]):
        dataclasses.replace(config, **change)


def test_a_missing_tensor_is_named(shapes):
    del (rest := dict(shapes))["decoder.model.0.conv.parametrizations.weight.original1"]
    with pytest.raises(RunError, match=r"decoder\.model\.0\.conv\.weight"):
        CodecConfig.from_shapes(rest)
