"""What makes a result what it is: a row is done when its id and its fingerprint are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from fishcli.errors import RowError, RunError
from fishcli.records import Row

DIGEST_BYTES = 16

_encode = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct, frozen=True, gc=False):
    path: str
    size: int
    mtime_ns: int
    digest: str


class ReferenceDigests:
    """Content digests of reference files, each file hashed once in its life.

    A digest holds as long as path, size and modification time do, and is kept across runs
    as a line of ``store``. ``hashed`` and ``seconds`` say what this object spent. Thread-safe.
    """

    def __init__(self, store: Path | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known = {entry.path: entry for entry in _stored(store)} if store else {}
        self._checked: dict[Path, str] = {}
        self.hashed = 0
        self.seconds = 0.0

    def digest(self, path: Path) -> str:
        """Digest of the bytes at ``path``; a file is looked at once for this object's life.

        Raises a passing :class:`RowError` if it cannot be read.
        """
        with self._lock:
            known = self._checked.get(path)
            if known is None:
                try:
                    known = self._checked[path] = self._look(path)
                except OSError as error:
                    message = f"reference {path} cannot be read: {error.strerror or error}"
                    raise RowError("bad_reference", message, passing=True) from error
            return known

    def _look(self, path: Path) -> str:
        found = path.stat()
        name = os.path.realpath(path)
        entry = self._known.get(name)
        if entry and (entry.size, entry.mtime_ns) == (found.st_size, found.st_mtime_ns):
            return entry.digest
        started = time.perf_counter()
        with path.open("rb") as file:
            hasher = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=DIGEST_BYTES))
        self.seconds += time.perf_counter() - started
        self.hashed += 1
        entry = _Entry(name, found.st_size, found.st_mtime_ns, hasher.hexdigest())
        self._known[name] = entry
        self._keep(entry)
        return entry.digest

    def _keep(self, entry: _Entry) -> None:
        if self._store is None:
            return
        # The leading newline ends a line that a killed run left torn. A cache that cannot
        # be written costs time, not rows.
        with contextlib.suppress(OSError, UnicodeEncodeError):
            self._store.parent.mkdir(parents=True, exist_ok=True)
            with self._store.open("ab") as file:
                file.write(b"\n" + _encode(entry) + b"\n")


class Fingerprinter:
    """Fingerprints rows for one model and one audio format.

    ``model_identity`` is the hub commit, or the hash of config, tensor headers and sizes.
    """

    def __init__(
        self, model_identity: str, audio_format: str, subtype: str, digests: ReferenceDigests
    ) -> None:
        self._digests = digests
        run = _encode((model_identity, audio_format, subtype))
        self._run = hashlib.blake2b(run, digest_size=DIGEST_BYTES)

    def fingerprint(self, row: Row) -> str:
        """32 hex digits over everything that changes the row's audio, and nothing else.

        Raises a passing :class:`RowError` if the reference file cannot be read.
        """
        reference = row.reference
        voice = None
        if reference is not None:
            voice = (reference.kind, self._digests.digest(reference.path), reference.text)
        sampling = row.sampling
        content = (
            row.text,
            voice,
            float(sampling.temperature),
            float(sampling.top_p),
            sampling.top_k,
            row.max_new_tokens,
            row.seed,
        )
        hasher = self._run.copy()
        hasher.update(_encode(content))
        return hasher.hexdigest()


def _stored(store: Path) -> Iterator[_Entry]:
    """Entries of an earlier run; lines that are not one (torn, foreign) are passed over."""
    decode = msgspec.json.Decoder(_Entry).decode
    try:
        with store.open("rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    yield decode(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read {store}: {error.strerror}") from error
