"""The prompt grid: a ChatML conversation in which audio frames stand as columns.

Row 0 of a grid holds token ids, rows 1… the codes of the columns that are audio and 0
elsewhere: (1 + codebooks, length) int32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fishcli.errors import RowError
from fishcli.model.config import ModelConfig
from fishcli.model.tokenizer import Tokenizer

SPEAKER = re.compile(r"<\|speaker:\d+\|>")
ANGLED = re.compile(r"<[^<>]*>")
PLAIN_INSTRUCTION = "convert the provided text to speech"
CLONE_INSTRUCTION = PLAIN_INSTRUCTION + " reference to the following:\n\nText:\n"


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A text and the audio frames that speak it: codes (codebooks, frames) int."""

    text: str
    codes: Tensor


class PromptBuilder:
    """Builds grids for one checkpoint's tokenizer and token ids."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config

    def build(
        self, text: str, references: Sequence[Spoken] = (), turns: Sequence[Spoken] = ()
    ) -> Tensor:
        """The grid that asks for ``text`` in the voice of ``references``.

        ``turns`` are earlier user texts with the frames that answered them. Raises
        :class:`RowError` if a text contains a control token of the model or is not Unicode.
        """
        return self.ask(self.system(references), text, turns)

    def system(self, references: Sequence[Spoken]) -> Tensor:
        """The grid of the system message, which all prompts with these references begin with.

        Raises :class:`RowError` as :meth:`build` does.
        """
        for spoken in references:
            self._check_text("ref_text", spoken.text)
        return torch.cat(self._system(references), dim=1)

    def ask(self, system: Tensor, text: str, turns: Sequence[Spoken] = ()) -> Tensor:
        """:meth:`build` behind a system message that is there already."""
        parts = [system]
        for turn in turns:
            parts += [*self._user(turn.text), self._opening("assistant")]
            parts += [self._audio(turn.codes), self._closing()]
        parts += [*self._user(text), self._opening("assistant")]
        return torch.cat(parts, dim=1)

    def _system(self, references: Sequence[Spoken]) -> list[Tensor]:
        opening, closing = self._opening("system"), self._closing()
        if not references:
            return [opening, self._text(PLAIN_INSTRUCTION), closing]
        transcripts = "\n".join(
            ref.text if SPEAKER.search(ref.text) else f"<|speaker:{index}|>{ref.text}"
            for index, ref in enumerate(references)
        )
        pieces = [CLONE_INSTRUCTION, transcripts, "\n\nSpeech:\n"]
        audio = [self._audio(ref.codes) for ref in references]
        return [opening, *map(self._text, pieces), *audio, closing]

    def _user(self, text: str) -> list[Tensor]:
        self._check_text("text", text)
        return [self._opening("user"), self._text(text), self._closing()]

    def _opening(self, role: str) -> Tensor:
        voice = "<|voice|>" if role == "assistant" else ""
        return self._text(f"<|im_start|>{role}\n{voice}")

    def _closing(self) -> Tensor:
        return self._text("<|im_end|>\n")

    def _text(self, piece: str) -> Tensor:
        ids = torch.tensor(list(self._tokenizer.encode(piece)), dtype=torch.int32)
        grid = torch.zeros(1 + self._config.num_codebooks, len(ids), dtype=torch.int32)
        grid[0] = ids
        return grid

    def _audio(self, codes: Tensor) -> Tensor:
        codes = codes.to(torch.int32)
        return torch.cat([codes[:1] + self._config.semantic_start, codes], dim=0)

    def _check_text(self, name: str, text: str) -> None:
        """A user must not be able to end the message or insert audio from inside a text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            message = f"{name} contains {half!r}, half a character: UTF-8 is expected"
            raise RowError("bad_text", message) from None
        control = self._tokenizer.control_tokens
        if "<" in text:
            for token in ANGLED.findall(text):
                if token in control and not SPEAKER.fullmatch(token):
                    raise RowError(
                        "bad_text",
                        f"{name} contains the control token {token}: "
                        "of these only <|speaker:N|> is allowed",
                    )
