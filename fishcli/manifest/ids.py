"""Ids: which are usable as file names, how missing ones are derived, and seeds from them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import msgspec

from fishcli.manifest.text import shown

ID_BYTES = 200  # in UTF-8; leaves room for a take's suffix and the file's

_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NUMBERED = [f"{port}{n}" for port in ("COM", "LPT") for n in "123456789¹²³"]
_WINDOWS_NAMES = frozenset(["CON", "PRN", "AUX", "NUL", *_NUMBERED])

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode


def id_problem(value: str) -> str | None:
    """Why ``value`` cannot be the stem of a file on every common file system, or None."""
    if not value or not value.isascii() or len(value) > ID_BYTES:
        size = len(value.encode(errors="surrogatepass"))
        if not 1 <= size <= ID_BYTES:
            return f"is {size} bytes long: allowed is [1, {ID_BYTES}]"
    bad = _FORBIDDEN.search(value)
    if bad:
        return f"is {shown(value)}: {bad[0]!r} is not allowed"
    if value[0] == "." or value[-1] in ". ":
        return f"is {shown(value)}: it may not begin with a dot, or end with a dot or a space"
    if value.partition(".")[0].rstrip().upper() in _WINDOWS_NAMES:
        return f"is {shown(value)}: a reserved name on Windows"
    return None


def fold(value: str) -> str:
    """What ``value`` becomes on file systems that ignore case and Unicode form."""
    if value.isascii():
        return value.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", value).casefold())


def seed_of(run_seed: int, row_id: str) -> int:
    """The seed of a row that names none: a hash in 0 … 2**63 - 1."""
    digest = hashlib.blake2b(f"{run_seed}\0{row_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class DerivedIds:
    """Ids for rows that have none: 16 hex digits of their content, repeats numbered.

    One object serves one pass over a manifest, whose order decides the numbers.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._repeats: dict[int, int] = {}

    def of(self, content: Mapping[str, Any]) -> str:
        """The id for a row of this content: known fields under their canonical names."""
        digest = hashlib.blake2b(_encode(content), digest_size=8).digest()
        key = int.from_bytes(digest)
        if key not in self._seen:
            self._seen.add(key)
            return digest.hex()
        count = self._repeats.get(key, 1) + 1
        self._repeats[key] = count
        return f"{digest.hex()}-{count}"
