"""Names of models lead to checkpoints; what is missing is one clear line."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

import fishcli
from fishcli import checkpoint, hub
from fishcli.checkpoint import resolve
from fishcli.codec import CodecConfig
from fishcli.errors import FishError, RunError, UsageError
from fishcli.model import ModelConfig

CPU = torch.device("cpu")
TOY = Path(fishcli.__file__).parent / "checkpoints" / "toy"
SHAPES = Path(__file__).parent / "data" / "s2-pro-shapes.json"


@pytest.fixture
def toy(tmp_path):
    folder = tmp_path / "toy"
    shutil.copytree(TOY, folder)
    return folder


@pytest.fixture
def cache(monkeypatch, toy):
    """A hub cache that holds s2-pro (the toy's files) under a commit's name."""
    snapshot = toy.rename(toy.with_name("c0ffee"))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda _repo, file: str(snapshot / file))
    return snapshot


def no_cache(monkeypatch):
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None)


def failing_download(monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error

    no_cache(monkeypatch)
    monkeypatch.setattr(hub, "snapshot_download", fail)


def answer(kind, code):
    response = SimpleNamespace(status_code=code, headers={}, request=None)
    return kind("the hub's own\nlong text", response=response)


def test_mini_is_shipped_and_says_what_it_is():
    found = resolve("mini", CPU)
    assert found.name == "mini"
    assert found.weights == "random"
    assert "what you hear is noise" in " ".join(found.notices)
    assert found.load_tokenizer().encode("hello")
    assert found.load_ar(CPU, torch.float32).config == found.config
    assert found.load_codec(CPU, torch.float32).config == found.codec_config


def test_random_models_need_no_files():
    found = resolve("random:mini", CPU)
    assert found.folder is None
    assert found.notices == ("random weights: speed only",)
    assert found.config == ModelConfig.from_folder(TOY)
    assert found.load_ar(CPU, torch.float32).config == found.config
    codec = found.load_codec(CPU, torch.float32)
    assert codec.hop_length == 2048
    assert len(found.load_tokenizer().encode("three short words")) >= 3


def test_random_s2_pro_has_the_published_sizes():
    found = resolve("random:s2-pro", CPU)
    shapes = json.loads(SHAPES.read_text())
    assert found.codec_config == CodecConfig.from_shapes(shapes["codec"])
    slow = found.config.slow
    assert [slow.vocab_size, slow.dim] == shapes["model"]["text_model.model.embeddings.weight"]
    assert (found.config.im_end, found.config.semantic_start) == (151645, 151678)


@pytest.mark.parametrize("name", ["random:big", "s3-pro", "./nowhere", "a/b/c", "../toy/none"])
def test_a_name_that_leads_nowhere_lists_what_there_is(name):
    with pytest.raises(UsageError, match="random:s2-pro"):
        resolve(name, CPU)


def test_a_folder_is_known_by_its_content(toy, tmp_path):
    first = resolve(str(toy), CPU)
    moved = toy.rename(tmp_path / "moved")
    assert resolve(str(moved), CPU).identity == first.identity
    weights = moved / "model-00002-of-00002.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # trained on: same shapes, same size
    weights.write_bytes(data)
    changed = resolve(str(moved), CPU)
    assert changed.identity != first.identity
    assert changed.codec_identity == first.codec_identity


def test_another_codec_is_another_model(toy):
    first = resolve(str(toy), CPU)
    (toy / "codec.json").write_text('{"quantizer_window": 8, "encoder_window": 32}')
    changed = resolve(str(toy), CPU)
    assert changed.codec_identity != first.codec_identity
    assert changed.identity != first.identity


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors", "codec.pth"]
)
def test_a_missing_file_is_named_before_any_work(toy, name):
    (toy / name).unlink()
    with pytest.raises(RunError, match=f"{name} is missing"):
        resolve(str(toy), CPU)


def test_codec_and_transformers_must_agree_on_the_codebooks(toy):
    config = json.loads((toy / "config.json").read_text())
    config["audio_decoder_config"]["num_codebooks"] = 9
    (toy / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="codec has 10 codebooks, config.json says 9"):
        resolve(str(toy), CPU)


@pytest.mark.parametrize("name", ["s2-pro", "fishaudio/s2-pro"])
def test_a_whole_copy_in_the_cache_is_used_without_network(monkeypatch, cache, name):
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: pytest.fail("went online"))
    found = resolve(name, CPU)
    assert found.name == "fishaudio/s2-pro"
    assert found.folder == cache
    assert found.identity == "fishaudio/s2-pro@c0ffee"
    assert found.weights == "trained"
    assert sum("Research License" in line for line in found.notices) == 1


def test_a_partial_copy_is_completed(monkeypatch, cache):
    whole = cache / "codec.pth"
    data = whole.read_bytes()
    whole.unlink()

    def download(*_args, **_kwargs):
        whole.write_bytes(data)
        return str(cache)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert resolve("s2-pro", CPU).folder == cache


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (answer(GatedRepoError, 403), UsageError, "accept its licence at https://"),
        (answer(RepositoryNotFoundError, 404), UsageError, "check the spelling"),
        (LocalEntryNotFoundError("offline"), RunError, "download it elsewhere"),
        (answer(HfHubHTTPError, 500), RunError, "could not be downloaded: the hub's own"),
        (ConnectionResetError("reset by peer"), RunError, "reset by peer"),
        (OSError(28, "No space left on device"), RunError, "No space left on device"),
    ],
)
def test_a_failed_download_is_one_line_that_says_what_to_do(monkeypatch, error, kind, advice):
    failing_download(monkeypatch, error)
    with pytest.raises(FishError) as caught:
        resolve("fishaudio/s2-pro", CPU)
    assert type(caught.value) is kind
    assert advice in str(caught.value)
    assert "fishaudio/s2-pro" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_never_downloads_and_says_why_it_took_mini(monkeypatch):
    failing_download(monkeypatch, AssertionError("auto went online"))
    found = resolve("auto", CPU)
    assert found.name == "mini"
    assert "fishaudio/s2-pro is not on disk" in found.notices[0]


def test_auto_takes_s2_pro_only_where_it_is_whole_and_fits(monkeypatch, cache):
    gpu = torch.device("cuda", 0)
    free = 30 * 10**9
    monkeypatch.setattr(checkpoint.torch.cuda, "mem_get_info", lambda _device: (free, 80 * 10**9))
    assert resolve("auto", gpu).name == "fishaudio/s2-pro"
    assert "needs a CUDA device" in resolve("auto", CPU).notices[0]
    free = 10 * 10**9
    assert "cuda:0 has 10.0" in resolve("auto", gpu).notices[0]
    (cache / "codec.pth").unlink()
    assert "only in part" in resolve("auto", gpu).notices[0]
