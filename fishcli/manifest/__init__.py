"""Reads a manifest of texts and voices into validated rows, streaming."""

from fishcli.manifest.reader import STDIN, Manifest, RawRecord, open_manifest
from fishcli.manifest.references import read_voice_pool, sidecar_text
from fishcli.manifest.rows import RowDefaults, RowSource, read_rows

__all__ = [
    "STDIN",
    "Manifest",
    "RawRecord",
    "RowDefaults",
    "RowSource",
    "open_manifest",
    "read_rows",
    "read_voice_pool",
    "sidecar_text",
]
