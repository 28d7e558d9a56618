"""Strict loading: every mismatch named, wrappers accepted, nothing executed."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file

from fishcli.codec import codec_config, load_codec
from fishcli.codec.loader import fold_weight_norm
from fishcli.errors import RunError
from tests.conftest import CPU, TOY


@pytest.fixture(scope="module")
def state():
    return dict(torch.load(TOY / "codec.pth", weights_only=True))


@pytest.fixture
def folder(tmp_path):
    shutil.copy(TOY / "codec.json", tmp_path)
    return tmp_path


def load_state(folder, state):
    torch.save(state, folder / "codec.pth")
    return load_codec(folder, CPU)


def same_weights(a, b):
    other = b.state_dict()
    return all(torch.equal(value, other[name]) for name, value in a.state_dict().items())


def test_wrapper_and_prefix_are_taken_off(folder, state, codec):
    prefixed = {"generator." + name: value for name, value in state.items()}
    assert same_weights(load_state(folder, {"state_dict": prefixed}), codec)


def test_safetensors_with_the_same_names_loads(folder, state, codec):
    save_file(
        {name: value.contiguous() for name, value in state.items()}, folder / "codec.safetensors"
    )
    loaded = load_codec(folder, CPU)
    assert same_weights(loaded, codec)
    assert loaded.config == codec.config == codec_config(folder)


def test_weights_already_folded_load(folder, state, codec):
    assert same_weights(load_state(folder, fold_weight_norm(state)), codec)


def test_folding_agrees_with_torch():
    conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.ConvTranspose1d(3, 5, 4))
    weight = conv.weight.detach().clone()
    folded = fold_weight_norm({f"x.{k}": v for k, v in conv.state_dict().items()})
    assert set(folded) == {"x.weight", "x.bias"}
    assert torch.allclose(folded["x.weight"], weight, atol=1e-7)


@pytest.mark.parametrize(
    "name",
    [
        "decoder.model.2.block.0.alpha",
        "quantizer.pre_module.layers.1.ffn_norm.weight",
        "encoder.block.0.conv.parametrizations.weight.original0",
        "quantizer.quantizer.quantizers.3.in_proj.weight_g",
        "quantizer.quantizer.quantizers.8.out_proj.weight_v",
        "decoder.model.0.conv.bias",
    ],
)
def test_a_missing_tensor_is_named(folder, state, name):
    with pytest.raises(RunError) as error:
        load_state(folder, {k: v for k, v in state.items() if k != name})
    assert "missing" in str(error.value)
    assert name.rsplit(".weight_v", 1)[0] in str(error.value)


@pytest.mark.parametrize("name", ["decoder.extra.weight", "quantizer.upsample.0.1.beta"])
def test_an_unexpected_tensor_is_named(folder, state, name):
    with pytest.raises(RunError, match=f"unexpected: {name}"):
        load_state(folder, state | {name: torch.zeros(3)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("decoder.model.5.alpha", (1, 5, 1)),
        ("quantizer.quantizer.quantizers.0.in_proj.weight_g", (8,)),
        ("quantizer.post_module.layers.0.attention.wqkv.weight", (128, 384)),
        ("encoder.block.1.block.4.conv.parametrizations.weight.original1", (16,)),
    ],
)
def test_a_wrong_shape_is_named(folder, state, name, shape):
    with pytest.raises(RunError, match="shape") as error:
        load_state(folder, state | {name: torch.ones(shape)})
    assert name.rsplit(".param", 1)[0] in str(error.value)


def test_recomputable_buffers_may_be_absent(folder, state, codec):
    lean = {k: v for k, v in state.items() if not k.endswith((".freqs_cis", ".causal_mask"))}
    assert len(lean) < len(state)
    assert same_weights(load_state(folder, lean), codec)


class Trap:
    """Creates a file when unpickled by an unguarded loader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_would_run_code_is_refused_in_one_line(folder, state):
    marker = folder / "executed"
    torch.save(state | {"decoder.trap": Trap(marker)}, folder / "codec.pth")

    for load in (lambda: load_codec(folder, CPU), lambda: codec_config(folder)):
        with pytest.raises(RunError, match=r"codec\.pth: refused") as error:
            load()
        assert "\n" not in str(error.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a checkpoint at all", pickle.dumps([1, 2, 3], 2), pickle.dumps({"a": 1}, 2)],
    ids=["empty", "garbage", "list", "no tensors"],
)
def test_a_file_that_is_no_checkpoint_is_named(folder, content):
    (folder / "codec.pth").write_bytes(content)
    with pytest.raises(RunError, match=r"codec\.pth"):
        load_codec(folder, CPU)


def test_a_torn_file_is_named(folder):
    whole = (TOY / "codec.pth").read_bytes()
    (folder / "codec.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match=r"codec\.pth"):
        load_codec(folder, CPU)


def test_no_codec_file_is_named(folder):
    with pytest.raises(RunError, match=r"codec\.pth is missing"):
        load_codec(folder, CPU)


def test_windows_default_to_upstreams_without_codec_json(folder):
    shutil.copy(TOY / "codec.pth", folder)
    (folder / "codec.json").unlink()
    config = codec_config(folder)
    assert (config.quantizer_window, config.encoder_window) == (128, 512)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantizer_window": 0}, "quantizer_window is 0"),
        ({"encoder_window": "many"}, "encoder_window is 'many'"),
        ({"window": 16}, "unknown key 'window'"),
        ([16], "must hold an object"),
    ],
)
def test_a_wrong_codec_json_is_an_error_that_names_the_field(folder, content, message):
    shutil.copy(TOY / "codec.pth", folder)
    (folder / "codec.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=message):
        codec_config(folder)


def test_loaded_weights_want_no_gradient_and_keep_precision_where_it_matters(folder):
    codec = load_codec(TOY, CPU, torch.bfloat16)
    dtypes = {name: p.dtype for name, p in codec.named_parameters()}
    assert not any(p.requires_grad for p in codec.parameters())
    assert not codec.training
    assert dtypes["decoder.model.0.conv.weight"] == torch.bfloat16
    assert dtypes["decoder.model.5.alpha"] == torch.float32
    assert dtypes["quantizer.quantizer.quantizers.0.codebook.weight"] == torch.float32
