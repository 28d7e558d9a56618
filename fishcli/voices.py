"""Reference voices: a clip's codes with its transcript, made once however often it is used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fishcli.audio import Samples, read_audio
from fishcli.codec import Codec
from fishcli.errors import RowError
from fishcli.outdir import atomic_write
from fishcli.records import Reference

VOICE_FORMAT = "fishcli-voice-1"
MAX_BATCH_FRAMES = 1536  # padding included; a full-size codec needs some 4 GB for these
CACHE_FRAMES = 1_000_000  # 13 hours of reference audio in 40 MB
CLIPS_IN_MEMORY = 32  # decoded at a time, at most 10 MB each

_Key: TypeAlias = tuple[str, Path]  # kind and path of a reference


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What a prompt needs of a reference."""

    codes: Tensor  # (codebooks, frames) int32, on the host
    text: str  # transcript


def save_voice(path: Path, voice: Voice, codec_identity: str) -> None:
    """Write a voice file, whole or not at all. Raises OSError."""
    metadata = {"format": VOICE_FORMAT, "text": voice.text, "codec": codec_identity}
    codes = voice.codes.to("cpu", torch.int32).contiguous()
    atomic_write(path, save({"codes": codes}, metadata))


def load_voice(path: Path, codec_identity: str | None) -> Voice:
    """Read a voice file; ``codec_identity`` None accepts the codes of any codec.

    Raises RowError naming the file: ``missing_voice`` (passing) if it cannot be opened,
    ``bad_voice`` if it is damaged, no voice file, or made with another codec.
    """
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        message = f"voice {path} cannot be opened: {error}"
        raise RowError("missing_voice", message, passing=True) from error
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            codes = file.get_tensor("codes") if "codes" in file.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _bad(path, f"cannot be read: {error}") from error
    if metadata.get("format") != VOICE_FORMAT or codes is None or "text" not in metadata:
        raise _bad(path, "is not a voice file of this version of fishcli")
    if codes.dtype != torch.int32 or codes.ndim != 2 or codes.numel() == 0:
        raise _bad(path, f"holds codes of {codes.dtype} {list(codes.shape)}")
    if codec_identity is not None and metadata.get("codec") != codec_identity:
        raise _bad(path, "was made with another codec: make it again with `fishcli clone`")
    return Voice(codes, metadata["text"])


class VoiceBook:
    """Turns references into voices: clips decoded on CPU threads, encoded in batches.

    Voices are remembered, the least recently used forgotten beyond ``cache_frames``; a
    clip or voice file counts as the same by its path. Which clips share a batch may change
    the last bits of the encoder's sums; with ``deterministic`` a clip is encoded on its own,
    so that its codes depend on the clip alone. One thread calls ``lookup``.
    """

    def __init__(
        self,
        codec: Codec,
        codec_identity: str,
        *,
        deterministic: bool = False,
        workers: int = 2,
        max_batch_frames: int = MAX_BATCH_FRAMES,
        cache_frames: int = CACHE_FRAMES,
    ) -> None:
        self._codec = codec
        self._codec_identity = codec_identity
        self._deterministic = deterministic
        self._max_batch_frames = max_batch_frames
        self._cache = _VoiceCache(cache_frames)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="reference")
        self.encoded = 0  # clips
        self.encode_seconds = 0.0  # on the clock, the hand-over to the host included

    def lookup(self, references: Sequence[Reference]) -> list[Voice | RowError]:
        """The voice of every reference, or why it has none, in the order asked for.

        A reference asked for twice is made once; a bad clip costs only its own rows.
        """
        keys: list[_Key] = [(reference.kind, reference.path) for reference in references]
        found: dict[_Key, Voice | RowError] = {}
        missing = []
        for key in dict.fromkeys(keys):
            known = self._cache.get(key)
            if known is None:
                missing.append(key)
            else:
                found[key] = known
        for key, made in self._make(missing):
            found[key] = made
            self._cache.put(key, made)
        return [_with_text(found[k], r.text) for k, r in zip(keys, references, strict=True)]

    def close(self) -> None:
        """End the threads; clips that are being decoded are waited for."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, keys: Sequence[_Key]) -> Iterator[tuple[_Key, Voice | RowError]]:
        """Read voice files and encode clips, a bounded number in memory at a time."""
        for start in range(0, len(keys), CLIPS_IN_MEMORY):
            some = keys[start : start + CLIPS_IN_MEMORY]
            clips = {}
            for key, read in zip(some, self._pool.map(self._read, some), strict=True):
                if isinstance(read, np.ndarray):
                    clips[key] = read
                else:
                    yield key, read
            yield from self._encode(clips)

    def _read(self, key: _Key) -> Samples | Voice | RowError:
        """Runs on a worker thread."""
        kind, path = key
        try:
            if kind == "audio":
                return read_audio(path, self._codec.sample_rate)
            voice = load_voice(path, self._codec_identity)
            self._check_codes(path, voice.codes)
        except RowError as error:
            return error
        return voice

    def _check_codes(self, path: Path, codes: Tensor) -> None:
        """Codes index the model's tables, so a damaged file must not get that far."""
        sizes = torch.tensor(self._codec.codebook_sizes)[:, None]
        if len(codes) != len(sizes) or bool(((codes < 0) | (codes >= sizes)).any()):
            raise _bad(path, "holds codes that the codec does not have")

    def _encode(self, clips: Mapping[_Key, Samples]) -> Iterator[tuple[_Key, Voice]]:
        hop = self._codec.hop_length
        for batch in self._batches(clips):
            started = time.perf_counter()
            longest = max(len(clips[key]) for key in batch)
            audio = torch.zeros(len(batch), longest)  # (rows, samples)
            for row, key in zip(audio, batch, strict=True):
                row[: len(clips[key])] = torch.from_numpy(clips[key])
            codes = self._codec.encode(audio).cpu()  # (rows, codebooks, frames)
            self.encode_seconds += time.perf_counter() - started
            self.encoded += len(batch)
            for row, key in zip(codes, batch, strict=True):
                frames = -(-len(clips[key]) // hop)
                yield key, Voice(row[:, :frames].clone(), "")

    def _batches(self, clips: Mapping[_Key, Samples]) -> Iterator[list[_Key]]:
        """Clips that are encoded together: of similar length, so that little is padding."""
        batch: list[_Key] = []
        for key in sorted(clips, key=lambda key: len(clips[key])):
            frames = -(-len(clips[key]) // self._codec.hop_length)
            full = (len(batch) + 1) * frames > self._max_batch_frames
            if batch and (full or self._deterministic):
                yield batch
                batch = []
            batch.append(key)
        if batch:
            yield batch


class _VoiceCache:
    """The voices used last, bounded by the sum of their frames."""

    def __init__(self, frames: int) -> None:
        self._limit = frames
        self._held = 0
        self._entries: OrderedDict[_Key, Voice | RowError] = OrderedDict()

    def get(self, key: _Key) -> Voice | RowError | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, made: Voice | RowError) -> None:
        """Remember ``made``, a new key's, unless it is an error that may pass."""
        if isinstance(made, RowError) and made.passing:
            return
        self._entries[key] = made
        self._held += _cost(made)
        while self._held > self._limit:
            self._held -= _cost(self._entries.popitem(last=False)[1])


def _cost(made: Voice | RowError) -> int:
    return made.codes.shape[1] if isinstance(made, Voice) else 1


def _with_text(made: Voice | RowError, text: str | None) -> Voice | RowError:
    """A clip's transcript is the row's; a voice file brings its own, and ``text`` is None."""
    if isinstance(made, RowError) or text is None:
        return made
    return Voice(made.codes, text)


def _bad(path: Path, what: str) -> RowError:
    return RowError("bad_voice", f"voice {path} {what}")
