"""What ``config.json`` says about the two transformers, checked and in our own names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fishcli.errors import RunError

MODEL_TYPE = "fish_qwen3_omni"


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of one transformer (slow or fast AR)."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_dim: int
    vocab_size: int
    max_seq_len: int
    rope_base: float
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "kv_heads", "mlp_dim", "vocab_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise RunError(f"config.json: {name} is {getattr(self, name)}: must be at least 1")
        if self.heads % self.kv_heads:
            raise RunError(
                f"config.json: n_head {self.heads} is not a multiple of "
                f"n_local_heads {self.kv_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise RunError(f"config.json: head_dim is {self.head_dim}: must be even")

    @classmethod
    def from_dict(cls, part: Mapping[str, Any], where: str) -> TransformerConfig:
        """Read one part of config.json; ``where`` names it in errors."""
        for key, value in part.items():
            if value and ("expert" in key or "moe" in key):
                raise RunError(f"config.json: {where}.{key}: mixture of experts is not supported")
        try:
            return cls(
                dim=part["dim"],
                layers=part["n_layer"],
                heads=part["n_head"],
                kv_heads=part.get("n_local_heads") or part["n_head"],
                head_dim=part.get("head_dim") or part["dim"] // part["n_head"],
                mlp_dim=part["intermediate_size"],
                vocab_size=part["vocab_size"],
                max_seq_len=part["max_seq_len"],
                rope_base=float(part["rope_base"]),
                norm_eps=float(part["norm_eps"]),
                qk_norm=bool(part.get("attention_qk_norm", False)),
                qkv_bias=bool(part.get("attention_qkv_bias", False)),
                o_bias=bool(part.get("attention_o_bias", False)),
            )
        except KeyError as error:
            raise RunError(f"config.json: {where} has no {error.args[0]!r}") from None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A checkpoint's ``config.json``. Token ids are the tokenizer's; ends are inclusive."""

    slow: TransformerConfig
    fast: TransformerConfig
    num_codebooks: int
    semantic_start: int
    semantic_end: int
    im_end: int

    def __post_init__(self) -> None:
        semantic = self.semantic_end - self.semantic_start + 1
        if semantic != self.fast.vocab_size:
            raise RunError(
                f"config.json: {semantic} semantic tokens, but the codebook vocabulary "
                f"(audio_decoder_config.vocab_size) is {self.fast.vocab_size}"
            )
        if not 2 <= self.num_codebooks <= self.fast.max_seq_len:
            raise RunError(
                f"config.json: num_codebooks is {self.num_codebooks}: allowed is 2 to "
                f"audio_decoder_config.max_seq_len ({self.fast.max_seq_len})"
            )
        for name in ("semantic_start", "semantic_end", "im_end"):
            if not 0 <= getattr(self, name) < self.slow.vocab_size:
                raise RunError(f"config.json: {name} lies outside the vocabulary")

    @property
    def codebook_size(self) -> int:
        """Entries of one codebook in the shared audio table, V in the formulas."""
        return self.fast.vocab_size

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read a parsed config.json; what we don't implement is refused by name."""
        if config.get("model_type") != MODEL_TYPE:
            raise RunError(
                f"config.json: model_type is {config.get('model_type')!r}: must be {MODEL_TYPE!r}"
            )
        try:
            text, audio = config["text_config"], config["audio_decoder_config"]
            if not text.get("tie_word_embeddings", True):
                raise RunError("config.json: an untied output head of the slow AR is not supported")
            if audio.get("tie_word_embeddings", False):
                raise RunError("config.json: a tied output head of the fast AR is not supported")
            slow = TransformerConfig.from_dict(text, "text_config")
            if audio.get("text_dim", slow.dim) != slow.dim:
                raise RunError(
                    f"config.json: audio_decoder_config.text_dim is {audio['text_dim']}, "
                    f"but text_config.dim is {slow.dim}"
                )
            return cls(
                slow=slow,
                fast=TransformerConfig.from_dict(audio, "audio_decoder_config"),
                num_codebooks=audio["num_codebooks"],
                semantic_start=config["semantic_start_token_id"],
                semantic_end=config["semantic_end_token_id"],
                im_end=config["eos_token_id"],
            )
        except KeyError as error:
            raise RunError(f"config.json has no {error.args[0]!r}") from None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read ``folder/config.json``."""
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path} is missing: {folder} is not a checkpoint folder") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None
        if not isinstance(config, dict):
            raise RunError(f"{path} is not a JSON object")
        return cls.from_dict(config)
