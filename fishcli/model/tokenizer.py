"""Text pieces to token ids: the checkpoint's own tokenizer, or hashed words without one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from fishcli.errors import RunError
from fishcli.model.config import ModelConfig


class Tokenizer(Protocol):
    """What prompts need of a tokenizer."""

    @property
    def control_tokens(self) -> frozenset[str]:
        """Tokens that steer the model; a user's text must not contain them."""
        ...

    def encode(self, piece: str) -> Sequence[int]:
        """Ids of one piece, no special tokens added."""
        ...


class CheckpointTokenizer:
    """The ``tokenizer.json`` of a checkpoint, through transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = frozenset(tokenizer.get_added_vocab())

    @property
    def control_tokens(self) -> frozenset[str]:
        return self._control_tokens

    def encode(self, piece: str) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False)
        return ids


class HashedWords:
    """For random weights, which have no tokenizer: one id a word, drawn by its hash.

    Prompts get a realistic length; what the ids mean does not matter to random weights.
    """

    _WORDS = re.compile(r"<\|[^|]+\|>|\w+|[^\w\s]|\s+(?=\s)|\n")

    def __init__(self, config: ModelConfig) -> None:
        self._size = min(config.semantic_start, config.im_end)  # below every control token

    @property
    def control_tokens(self) -> frozenset[str]:
        return frozenset()

    def encode(self, piece: str) -> Sequence[int]:
        return [self._id(word) for word in self._WORDS.findall(piece)]

    def _id(self, word: str) -> int:
        digest = blake2b(word.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self._size


def load_tokenizer(folder: Path, config: ModelConfig) -> CheckpointTokenizer:
    """Load a checkpoint's tokenizer and check that its ids are those of config.json.

    Raises :class:`RunError` naming a missing file or the token that does not fit.
    """
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - seconds to import

    if not (folder / "tokenizer.json").exists():
        raise RunError(f"{folder / 'tokenizer.json'} is missing from the checkpoint")
    try:
        # Not AutoTokenizer: it would look for a model class to go with config.json.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{folder}: the tokenizer cannot be loaded: {error}") from None
    expected = {
        "<|im_end|>": config.im_end,
        "<|semantic:0|>": config.semantic_start,
        f"<|semantic:{config.codebook_size - 1}|>": config.semantic_end,
    }
    vocabulary = tokenizer.get_vocab()
    for token, wanted in expected.items():
        found = vocabulary.get(token)
        if found != wanted:
            raise RunError(
                f"{folder}: {token} is {found} to the tokenizer, {wanted} in config.json"
            )
    for token in ("<|im_start|>", "<|voice|>"):
        if token not in vocabulary:
            raise RunError(f"{folder}: the tokenizer has no {token}")
    return CheckpointTokenizer(tokenizer)
