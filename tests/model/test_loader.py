"""Strict loading: any family member by the same code, any misfit named."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from fishcli.errors import RunError
from fishcli.kernels.ops import PLAIN
from fishcli.model import ModelConfig, load_ar, random_ar
from fishcli.model.loader import DualAR
from tests.conftest import CPU, TOY

ROOT = TOY.parents[2]


@pytest.fixture
def folder(tmp_path):
    """A writable copy of the toy's transformers."""
    for file in [*TOY.glob("*.json"), *TOY.glob("*.safetensors")]:
        shutil.copy(file, tmp_path)
    return tmp_path


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_shard(folder, change):
    shard = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard)


def test_full_size_model_has_exactly_the_published_tensors():
    published = json.loads((ROOT / "tests/data/s2-pro-shapes.json").read_text())["model"]
    config = json.loads((ROOT / "configs/models/s2-pro.json").read_text())["config"]
    with torch.device("meta"):
        model = DualAR(ModelConfig.from_dict(config))
    shapes = {n: list(t.shape) for n, t in model.checkpoint_tensors().items()}
    assert shapes == published


def test_one_file_loads_like_shards(folder):
    shards = sorted(folder.glob("model-*.safetensors"))
    tensors = {name: t for shard in shards for name, t in load_file(shard).items()}
    for shard in shards:
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors")
    one, other = load_ar(folder, CPU, torch.float32), load_ar(TOY, CPU, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_missing_unexpected_and_misshapen_tensors_are_named(folder):
    def change(tensors):
        names = sorted(tensors)
        del tensors[names[0]]
        tensors["audio_decoder.stray.weight"] = torch.zeros(2)
        tensors[names[-1]] = torch.zeros(3)
        change.missing, change.misshapen = names[0], names[-1]

    edit_shard(folder, change)
    with pytest.raises(RunError) as error:
        load_ar(folder, CPU, torch.float32)
    message = str(error.value)
    assert f"missing {change.missing}" in message
    assert "unexpected audio_decoder.stray.weight" in message
    assert f"{change.misshapen} has shape [3]" in message


def test_missing_shard_is_named_before_anything_is_read(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(RunError, match=r"model-00002-of-00002\.safetensors is missing"):
        load_ar(folder, CPU, torch.float32)


def test_torn_shard_is_one_clear_line(folder):
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(RunError, match="cannot be read"):
        load_ar(folder, CPU, torch.float32)


def test_index_cannot_leave_the_folder(folder):
    edit_json(
        folder / "model.safetensors.index.json",
        lambda index: index["weight_map"].update(x="../other.safetensors"),
    )
    with pytest.raises(RunError, match="outside its folder"):
        load_ar(folder, CPU, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(model_type="llama"), "model_type is 'llama'"),
        (lambda c: c["text_config"].update(tie_word_embeddings=False), "untied"),
        (lambda c: c["text_config"].update(num_experts=8), "mixture of experts"),
        (lambda c: c["text_config"].pop("dim"), "text_config has no 'dim'"),
        (lambda c: c.pop("eos_token_id"), "has no 'eos_token_id'"),
        (lambda c: c.update(semantic_end_token_id=300), "semantic tokens"),
        (lambda c: c["text_config"].update(n_local_heads=3), "not a multiple"),
        (lambda c: c["audio_decoder_config"].update(num_codebooks=12), "num_codebooks is 12"),
        (lambda c: c["audio_decoder_config"].update(text_dim=97), "text_dim is 97"),
    ],
)
def test_configs_we_cannot_run_are_refused_by_name(folder, change, message):
    edit_json(folder / "config.json", change)
    with pytest.raises(RunError, match=message):
        ModelConfig.from_folder(folder)


def variant(**fast):
    config = json.loads((TOY / "config.json").read_text())
    config["audio_decoder_config"].update(fast)
    return config


@pytest.mark.parametrize(
    "config",
    [
        variant(dim=64, n_head=2, head_dim=32),  # project_in
        variant(num_codebooks=8),
        variant(attention_qk_norm=True),
        variant(attention_qkv_bias=True, attention_o_bias=True),
        variant(n_local_heads=None),  # absent: as many as heads
    ],
)
def test_other_members_of_the_family_round_trip(tmp_path, config):
    """Saved under checkpoint names and loaded again, driven by config and shapes alone."""
    made = random_ar(ModelConfig.from_dict(config), CPU, torch.float32, seed=3)
    tensors = {n: t.clone() for n, t in made.checkpoint_tensors().items()}
    has_projection = "audio_decoder.project_in.weight" in tensors
    assert has_projection == (config["audio_decoder_config"]["dim"] != 96)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_ar(tmp_path, CPU, torch.float32)
    assert loaded.state_dict().keys() == made.state_dict().keys()
    assert all(torch.equal(t, loaded.state_dict()[n]) for n, t in made.state_dict().items())


def test_random_weights_repeat_with_their_seed():
    config = ModelConfig.from_folder(TOY)
    one, other = (random_ar(config, CPU, torch.float32, seed=5) for _ in range(2))
    third = random_ar(config, CPU, torch.float32, seed=6)
    assert torch.equal(one.slow.embeddings.weight, other.slow.embeddings.weight)
    assert not torch.equal(one.slow.embeddings.weight, third.slow.embeddings.weight)


def test_other_ops_run_with_the_same_weights(toy_ar):
    calls = []

    def counted_norm(*arguments):
        calls.append(arguments)
        return PLAIN.rms_norm(*arguments)

    twin = toy_ar.with_ops(replace(PLAIN, rms_norm=counted_norm))
    pairs = zip(toy_ar.named_parameters(), twin.named_parameters(), strict=True)
    assert all(
        name == other and mine.data_ptr() == theirs.data_ptr()
        for (name, mine), (other, theirs) in pairs
    )
    assert torch.equal(twin.slow.head, toy_ar.slow.head)
    hidden = torch.ones(2, toy_ar.config.slow.dim)

    def attend(layer, qkv, heads):
        return qkv[:, : -2 * heads.kv_heads * heads.head_dim]

    assert torch.equal(twin.slow.run(hidden, attend), toy_ar.slow.run(hidden, attend))
    assert len(calls) == 1
