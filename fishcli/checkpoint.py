"""From a model's name to its weights: shipped, on disk, on the hub, or random.

``resolve`` decides and checks files; nothing is loaded until ``load_*`` is called.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from fishcli import hub
from fishcli.codec import Codec, CodecConfig, codec_config, load_codec, random_codec
from fishcli.errors import RunError, UsageError
from fishcli.kernels.ops import PLAIN, Ops
from fishcli.model import DualAR, ModelConfig, load_ar, random_ar
from fishcli.model.loader import weight_files
from fishcli.model.tokenizer import HashedWords, Tokenizer, load_tokenizer
from fishcli.settings import config_text

S2_PRO = "fishaudio/s2-pro"
AUTO_FREE_BYTES = 20 * 10**9  # weights in bfloat16, codec, and a KV cache worth having
RANDOM_SIZES = ("s2-pro", "mini")
NAMES = "auto, mini, s2-pro, random:s2-pro, random:mini, a folder, or a hub id such as " + S2_PRO

LICENCE_NOTICE = (
    f"{S2_PRO} is under the Fish Audio Research License: free for research and non-commercial "
    "use, anything else needs a licence from Fish Audio"
)
MINI_NOTICE = "mini is not trained yet: the toy checkpoint stands in, what you hear is noise"
RANDOM_NOTICE = "random weights: speed only"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that can be loaded. Made by :func:`resolve`, which has checked its files."""

    name: str  # never "auto" or an alias
    folder: Path | None  # None: random weights
    config: ModelConfig
    codec_config: CodecConfig
    identity: str  # equal for equal weights; part of every row's fingerprint
    codec_identity: str  # of the codec alone: voices serve every model that shares it
    weights: Literal["trained", "random"]
    notices: tuple[str, ...] = ()  # lines the user should read once

    def __post_init__(self) -> None:
        if self.codec_config.num_codebooks != self.config.num_codebooks:
            raise RunError(
                f"{self.name}: the codec has {self.codec_config.num_codebooks} codebooks, "
                f"config.json says {self.config.num_codebooks}"
            )

    def load_ar(self, device: torch.device, dtype: torch.dtype, ops: Ops = PLAIN) -> DualAR:
        """Both transformers, run with ``ops``; raises :class:`RunError` listing what misfits."""
        if self.folder is None:
            return random_ar(self.config, device, dtype, ops)
        return load_ar(self.folder, device, dtype, ops)

    def load_codec(self, device: torch.device, dtype: torch.dtype) -> Codec:
        """The codec; raises :class:`RunError` listing what does not fit."""
        if self.folder is None:
            return random_codec(self.codec_config, device, dtype)
        return load_codec(self.folder, device, dtype)

    def load_tokenizer(self) -> Tokenizer:
        """The checkpoint's own tokenizer, or hashed words where weights are random."""
        if self.folder is None:
            return HashedWords(self.config)
        return load_tokenizer(self.folder, self.config)


def resolve(name: str, device: torch.device) -> Checkpoint:
    """The checkpoint called ``name``; only a hub id (or ``s2-pro``) may download.

    ``device`` matters to ``auto``: it takes s2-pro if that is on disk and fits, else mini.
    Raises :class:`UsageError` for a name that leads nowhere, :class:`RunError` naming a
    file that is missing or broken.
    """
    if name == "auto":
        return _auto(device)
    if name == "mini":
        return _mini()
    if name.startswith("random:"):
        return _random(name)
    if name == "s2-pro":
        name = S2_PRO
    if Path(name).expanduser().is_dir():
        return _from_folder(Path(name).expanduser())
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
        return _from_hub(name)
    raise UsageError(f"model {name!r} leads nowhere: allowed is {NAMES}")


def check_files(folder: Path) -> None:
    """Raise :class:`RunError` naming the first file a checkpoint lacks. Reads no weights."""
    for file in (folder / "config.json", folder / "tokenizer.json", _codec_files(folder)[0]):
        if not file.is_file():
            raise RunError(f"{file} is missing from the checkpoint")
    weight_files(folder)


def _auto(device: torch.device) -> Checkpoint:
    folder = hub.cached_folder(S2_PRO)
    if folder is None:
        reason = f"{S2_PRO} is not on disk (`--model s2-pro` downloads it)"
    elif not _is_whole(folder):
        reason = f"{S2_PRO} is on disk only in part (`--model s2-pro` downloads the rest)"
    elif device.type != "cuda":
        reason = f"{S2_PRO} needs a CUDA device (`--model s2-pro` runs it on {device} all the same)"
    elif (free := torch.cuda.mem_get_info(device)[0]) < AUTO_FREE_BYTES:
        reason = (
            f"{S2_PRO} needs {AUTO_FREE_BYTES / 1e9:.0f} GB of free device memory, "
            f"{device} has {free / 1e9:.1f}"
        )
    else:
        return _from_hub(S2_PRO)
    return _mini(f"model auto takes mini: {reason}")


def _mini(*notices: str) -> Checkpoint:
    folder = Path(__file__).parent / "checkpoints" / "toy"
    return _checkpoint("mini", folder, "random", (*notices, MINI_NOTICE))


def _random(name: str) -> Checkpoint:
    size = name.removeprefix("random:")
    if size not in RANDOM_SIZES:
        sizes = " and ".join(f"random:{known}" for known in RANDOM_SIZES)
        raise UsageError(f"model {name!r} is unknown: there are {sizes}")
    text = config_text(f"models/{size}.json")
    parts: dict[str, Any] = json.loads(text)
    return Checkpoint(
        name=name,
        folder=None,
        config=ModelConfig.from_dict(parts["config"]),
        codec_config=msgspec.convert(parts["codec"], CodecConfig),
        identity=f"{name} {_digest(text.encode())}",
        codec_identity=f"{name} {_digest(json.dumps(parts['codec']).encode())}",
        weights="random",
        notices=(RANDOM_NOTICE,),
    )


def _from_hub(repository: str) -> Checkpoint:
    """A whole copy on disk is used as it is, so that a rerun meets the same weights."""
    folder = hub.cached_folder(repository)
    if folder is None or not _is_whole(folder):
        folder = hub.download(repository)
    notices = (LICENCE_NOTICE,) if repository == S2_PRO else ()
    identity = f"{repository}@{folder.name}"  # the cache names a snapshot after its commit
    return _checkpoint(repository, folder, "trained", notices, identity)


def _from_folder(folder: Path) -> Checkpoint:
    return _checkpoint(str(folder), folder, "trained", ())


def _checkpoint(
    name: str,
    folder: Path,
    weights: Literal["trained", "random"],
    notices: tuple[str, ...],
    identity: str | None = None,
) -> Checkpoint:
    check_files(folder)
    return Checkpoint(
        name=name,
        folder=folder,
        config=ModelConfig.from_folder(folder),
        codec_config=codec_config(folder),
        identity=identity or _identity([*_ar_files(folder), *_codec_files(folder)]),
        codec_identity=_identity(_codec_files(folder)),
        weights=weights,
        notices=notices,
    )


def _is_whole(folder: Path) -> bool:
    try:
        check_files(folder)
    except RunError:
        return False
    return True


def _ar_files(folder: Path) -> list[Path]:
    """The files of the transformers and their tokenizer."""
    return [folder / "config.json", folder / "tokenizer.json", *weight_files(folder)]


def _codec_files(folder: Path) -> list[Path]:
    """The codec's weights and, last, what may say more about them."""
    pickle, safe = folder / "codec.pth", folder / "codec.safetensors"
    return [safe if safe.is_file() and not pickle.is_file() else pickle, folder / "codec.json"]


def _identity(files: list[Path]) -> str:
    """Digest of files: name, size, first and last MiB of each that is there.

    The first MiB holds configs, tokenizer and the headers of safetensors, the last one
    weights, so that a model trained further differs. Reading all of 11 GB would cost half
    a minute at every start.
    """
    parts = []
    for file in sorted(filter(Path.is_file, files)):
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(2**20)
            stream.seek(max(0, size - 2**20))
            parts.append(f"{file.name} {size} {_digest(head + stream.read())}")
    return _digest("\n".join(parts).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
