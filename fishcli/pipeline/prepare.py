"""The preparing thread: rows become requests, a little ahead of the engine.

It owns reference encoding. A row that cannot be prepared goes straight to the writers as
a failed record; the others wait in a bounded channel, in the order of the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from fishcli.channel import Channel, ChannelClosedError
from fishcli.errors import RowError
from fishcli.estimate import estimate_frames, frame_budget
from fishcli.fingerprint import Fingerprinter
from fishcli.prompt import PromptBuilder, Spoken
from fishcli.records import Request, Row
from fishcli.threads import use_torch_threads
from fishcli.voices import Voice, VoiceBook

GROUP_ROWS = 16  # rows whose references are encoded together


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A row ready for the engine."""

    row: Row
    fingerprint: str
    request: Request


class Preparer:
    """Turns rows into requests.

    capacity: positions of a slot. ``exact_frames``: rows by id that must come out with
    exactly so many frames, stop or not (benches with random weights).
    """

    def __init__(
        self,
        prompts: PromptBuilder,
        voices: VoiceBook,
        fingerprinter: Fingerprinter,
        capacity: int,
        exact_frames: Mapping[str, int] | None = None,
    ) -> None:
        self._prompts = prompts
        self._voices = voices
        self._fingerprinter = fingerprinter
        self._capacity = capacity
        self._exact_frames = exact_frames

    def prepare(self, rows: list[Row]) -> list[Prepared | RowError]:
        """One result a row, in order; a bad row does not harm the others."""
        references = {row.reference for row in rows if row.reference is not None}
        ordered = sorted(references, key=lambda ref: (str(ref.path), ref.text or ""))
        voices = dict(zip(ordered, self._voices.lookup(ordered), strict=True))
        results: list[Prepared | RowError] = []
        for row in rows:
            try:
                voice = voices[row.reference] if row.reference is not None else None
                results.append(self._prepare(row, voice))
            except RowError as error:
                results.append(error)
        return results

    def fingerprint(self, row: Row) -> str:
        """The row's fingerprint, or none if its reference cannot be read."""
        try:
            return self._fingerprinter.fingerprint(row)
        except RowError:
            return ""

    def _prepare(self, row: Row, voice: Voice | RowError | None) -> Prepared:
        if isinstance(voice, RowError):
            raise voice
        spoken = [] if voice is None else [Spoken(voice.text, torch.as_tensor(voice.codes))]
        system = self._prompts.system(spoken)
        prompt = self._prompts.ask(system, row.text)
        request = Request(
            id=row.id,
            prompt=prompt,
            sampling=row.sampling,
            seed=row.seed,
            max_frames=self._frames(row),
            ignore_stop=self._exact_frames is not None,
            expected_frames=estimate_frames(row.text),
            shared_columns=system.shape[1],
        )
        total = prompt.shape[1] + request.max_frames
        if total > self._capacity:
            raise RowError(
                "too_long",
                f"prompt of {prompt.shape[1]} positions and a budget of {request.max_frames} "
                f"frames: together allowed are {self._capacity}",
            )
        return Prepared(row, self._fingerprinter.fingerprint(row), request)

    def _frames(self, row: Row) -> int:
        if self._exact_frames is not None:
            return self._exact_frames[row.id]
        return frame_budget(row.text, row.max_new_tokens)


class PreparingThread:
    """Runs a :class:`Preparer` over rows, ahead of the engine by ``ahead`` requests.

    ``on_failed`` and ``on_error`` are called in the thread: a row that cannot be prepared,
    and an error after which it prepares nothing more. ``threads``: of torch, for encoding
    references on a CPU; None leaves torch's own number.
    """

    def __init__(
        self,
        preparer: Preparer,
        rows: Iterable[Row],
        ahead: int,
        on_failed: Callable[[Row, RowError], None],
        on_error: Callable[[BaseException], None],
        threads: int | None = None,
    ) -> None:
        self._preparer = preparer
        self._rows = iter(rows)
        self._on_failed = on_failed
        self._on_error = on_error
        self._threads = threads
        self._channel: Channel[Prepared] = Channel(ahead)
        self._thread = threading.Thread(target=self._run, name="preparer", daemon=True)

    def start(self) -> None:
        """Begin preparing."""
        self._thread.start()

    def get(self) -> Prepared | None:
        """The next row's request; waits for it. None: there are no more."""
        try:
            return self._channel.get()
        except ChannelClosedError:
            return None

    def finish(self) -> None:
        """Prepare nothing more; what is ready can still be taken."""
        self._channel.close()

    def stop(self, error: BaseException) -> None:
        """Prepare nothing more; a waiting or later :meth:`get` raises ``error``."""
        self._channel.fail(error)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end after its last row or a :meth:`stop`."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            use_torch_threads(self._threads)
            for group in _groups(self._rows):
                for row, result in zip(group, self._preparer.prepare(group), strict=True):
                    if isinstance(result, Prepared):
                        self._channel.put(result)
                    else:
                        self._on_failed(row, result)
            self._channel.close()
        except ChannelClosedError:  # told to finish
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the pipeline, which raises it
            self._on_error(error)


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while group := list(islice(rows, GROUP_ROWS)):
        yield group


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """What the pipeline remembers of a row while it is generated and decoded."""

    row: Row
    fingerprint: str
    prompt_tokens: int
    submitted: float  # time.perf_counter()

    @classmethod
    def of(cls, prepared: Prepared, submitted: float | None = None) -> Ticket:
        """The ticket of a row; ``submitted`` defaults to now."""
        when = time.perf_counter() if submitted is None else submitted
        return cls(prepared.row, prepared.fingerprint, prepared.request.prompt.shape[1], when)
