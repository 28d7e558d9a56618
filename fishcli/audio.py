"""Sound files: reference clips in, synthesised audio out.

libsndfile reads and writes the formats and soxr resamples; what is checked here is that a
clip can serve as a voice.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from fishcli.errors import RowError, UsageError
from fishcli.settings import SUBTYPES

SAMPLE_RATE = 44100  # Hz, what the codec speaks

# What a reference clip may be. Less carries no voice; more would crowd out the prompt.
MIN_REFERENCE_SECONDS = 0.5
MAX_REFERENCE_SECONDS = 60.0
# Headers beyond these are damaged or hostile, and would ask for absurd amounts of memory.
MAX_CHANNELS = 16
MIN_SAMPLE_RATE = 4_000
MAX_SAMPLE_RATE = 384_000
# Float files may overshoot 1 a little; integers written as floats are far beyond.
MAX_PEAK = 8.0
# A decoder that stops this far before the length in the header has met damage. Lengths of
# MP3 files without a table of contents are estimates, so it is not exact.
WHOLE_SHARE = 0.9

Samples = npt.NDArray[np.float32]


def read_audio(path: Path, sample_rate: int = SAMPLE_RATE) -> Samples:
    """A reference clip as mono float32 samples at ``sample_rate``: (samples,).

    Reads whatever libsndfile does, by content and not by extension; channels are averaged.
    Raises RowError naming the file: ``missing_audio`` (passing) if it cannot be opened,
    ``bad_audio`` if it is damaged, empty, silent, holds NaN or infinity, or lasts less
    than ``MIN_REFERENCE_SECONDS`` or more than ``MAX_REFERENCE_SECONDS``.
    """
    _check_opens(path)
    try:
        with soundfile.SoundFile(path) as file:
            samples = _read_checked(path, file)  # (samples, channels)
            rate = file.samplerate
    # TypeError: soundfile asks for the missing header of a file named *.raw
    except (soundfile.SoundFileError, TypeError) as error:
        raise _bad(path, f"cannot be decoded: {_cause(error)}") from error
    with np.errstate(invalid="ignore", over="ignore"):  # infinity is told below, as an error
        mono: Samples = samples.mean(axis=1, dtype=np.float32)
    _check_content(path, mono, len(mono) / rate)
    if rate == sample_rate:
        return mono
    resampled: Samples = soxr.resample(mono, rate, sample_rate)
    return resampled


def check_audio_format(container: str, subtype: str) -> None:
    """Raise UsageError listing what is allowed unless ``subtype`` fits ``container``."""
    if subtype not in SUBTYPES.get(container, ()):
        allowed = "; ".join(f"{name} with {', '.join(subs)}" for name, subs in SUBTYPES.items())
        raise UsageError(f"audio format is {container} with {subtype}: allowed are {allowed}")


def write_audio(
    file: Path, pcm: npt.NDArray[Any], sample_rate: int, container: str, subtype: str
) -> None:
    """Write mono ``pcm`` (samples,) to ``file``; the same samples give the same bytes.

    ``pcm`` is int16 for subtype PCM_16 and float32 in [-1, 1] for the others. Raises
    UsageError for a pair that does not fit and OSError if the disk refuses.
    """
    check_audio_format(container, subtype)
    assert pcm.ndim == 1, pcm.shape
    assert pcm.dtype == (np.int16 if subtype == "PCM_16" else np.float32), (pcm.dtype, subtype)
    # Through memory: libsndfile would turn "no space left" into a nameless error.
    buffer = io.BytesIO()
    soundfile.write(buffer, pcm, sample_rate, format=container.upper(), subtype=subtype)
    file.write_bytes(_without_time_stamp(buffer.getbuffer()))


def _without_time_stamp(data: memoryview) -> memoryview:
    """Zero the time that libsndfile puts into the PEAK chunk of float files, in place."""
    header = bytes(data[:128])
    peak = header.find(b"PEAK")
    if header.startswith(b"RIFF") and 0 <= peak < header.find(b"data"):
        data[peak + 12 : peak + 16] = bytes(4)  # behind name, size and version
    return data


def _check_opens(path: Path) -> None:
    """Tell a file that is away from one that is damaged; libsndfile does not."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise _bad(path, "is not a file")
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else str(error)
        message = f"reference audio {path} cannot be opened: {why}"
        raise RowError("missing_audio", message, passing=True) from error


def _read_checked(path: Path, file: soundfile.SoundFile) -> Samples:
    """All samples (samples, channels), after the header has promised a sane amount."""
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise _bad(path, f"has {file.channels} channels: allowed are 1 to {MAX_CHANNELS}")
    if not MIN_SAMPLE_RATE <= file.samplerate <= MAX_SAMPLE_RATE:
        raise _bad(
            path,
            f"has {file.samplerate} samples a second: allowed are {MIN_SAMPLE_RATE} to "
            f"{MAX_SAMPLE_RATE}",
        )
    promised = file.frames
    _check_seconds(path, promised / file.samplerate)
    # One more than allowed, so that a header that lies about the length is found out.
    most = int(MAX_REFERENCE_SECONDS * file.samplerate) + 1
    samples: Samples = file.read(most, dtype="float32", always_2d=True)
    if len(samples) < WHOLE_SHARE * promised:
        raise _bad(path, f"is damaged: {len(samples)} of {promised} samples could be decoded")
    return samples


def _check_content(path: Path, mono: Samples, seconds: float) -> None:
    _check_seconds(path, seconds)
    if not np.isfinite(mono).all():
        raise _bad(path, "holds NaN or infinite samples")
    peak = float(np.abs(mono).max())
    if peak == 0.0:
        raise _bad(path, "is silent: all samples are zero")
    if peak > MAX_PEAK:
        raise _bad(path, f"reaches {peak:g}: float samples must lie within -1 and 1")


def _check_seconds(path: Path, seconds: float) -> None:
    if seconds == 0:
        raise _bad(path, "is empty: it holds no samples")
    if not MIN_REFERENCE_SECONDS <= seconds <= MAX_REFERENCE_SECONDS:
        raise _bad(
            path,
            f"lasts {seconds:.2f} s: allowed are {MIN_REFERENCE_SECONDS:g} to "
            f"{MAX_REFERENCE_SECONDS:g} s",
        )


def _bad(path: Path, what: str) -> RowError:
    return RowError("bad_audio", f"reference audio {path} {what}")


def _cause(error: Exception) -> str:
    """libsndfile's own words without soundfile's repetition of the path."""
    return str(getattr(error, "error_string", None) or error).strip()
