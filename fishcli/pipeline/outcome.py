"""How a row ended, as the record that goes into the ledger."""

from __future__ import annotations

import msgspec

from fishcli.decoder import DecodedRow
from fishcli.errors import RowError
from fishcli.ledger import Record
from fishcli.pipeline.prepare import Ticket
from fishcli.records import Row


def decoded_record(
    decoded: DecodedRow, ticket: Ticket, model: str, frame_s: float, *, exact: bool
) -> Record:
    """The record of a decoded row: ok, capped, or failed where there is nothing to hear.

    ``frame_s``: seconds of a frame. ``exact``: the row was asked for so many frames and
    reached them, so running out of its budget is no flaw.
    """
    row = ticket.row
    wall_s = decoded.decoded - ticket.submitted
    clipped = (f"clipped {decoded.clipped} samples",) if decoded.clipped else ()
    record = Record(
        id=row.id,
        fingerprint=ticket.fingerprint,
        status="failed",
        seed=row.seed,
        model=model,
        wall_s=wall_s,
        prompt_tokens=ticket.prompt_tokens,
        flags=(*row.warnings, *clipped),
    )
    frames = decoded.row.codes.shape[1]
    if frames == 0:
        message = "the model's first token was the stop: there is no audio"
        return msgspec.structs.replace(record, reason="no_audio", message=message)
    if not decoded.finite:
        message = "the codec's output is not finite"
        return msgspec.structs.replace(record, reason="not_finite", message=message)
    duration_s = frames * frame_s
    return msgspec.structs.replace(
        record,
        status="capped" if decoded.row.finish_reason == "length" and not exact else "ok",
        frames=frames,
        duration_s=duration_s,
        finish_reason=decoded.row.finish_reason,
        rtf=wall_s / duration_s,
        ttfp_s=wall_s,  # a row is decoded whole: its first audio is all of it
    )


def failed_record(row: Row, error: RowError, fingerprint: str, model: str) -> Record:
    """The record of a row that never reached the engine."""
    return Record(
        id=row.id,
        fingerprint=fingerprint,
        status="failed",
        reason=error.reason,
        message=str(error),
        passing=error.passing,
        seed=row.seed,
        model=model,
        flags=row.warnings,
    )
