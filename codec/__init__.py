"""The codec of Fish Speech S2 Pro: 44.1 kHz mono audio to frames of codes and back."""

from fishcli.codec.config import SAMPLE_RATE, CodecConfig
from fishcli.codec.loader import codec_config, load_codec
from fishcli.codec.model import Codec
from fishcli.codec.random_weights import random_codec

__all__ = ["SAMPLE_RATE", "Codec", "CodecConfig", "codec_config", "load_codec", "random_codec"]
