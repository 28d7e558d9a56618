"""The two transformers of an S2 checkpoint: configuration, arithmetic, loading."""

from fishcli.model.config import ModelConfig, TransformerConfig
from fishcli.model.loader import DualAR, load_ar, random_ar

__all__ = ["DualAR", "ModelConfig", "TransformerConfig", "load_ar", "random_ar"]
