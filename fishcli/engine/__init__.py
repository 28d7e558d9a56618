"""The AR engine: continuous batching of frames over slots and a paged cache."""

from fishcli.engine.cache import BLOCK_SIZE, bytes_per_token
from fishcli.engine.engine import Engine, EngineSettings, EngineStats, ListSource, RequestSource
from fishcli.engine.runner import ModelRunner
from fishcli.engine.scheduler import Batching

__all__ = [
    "BLOCK_SIZE",
    "Batching",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "ListSource",
    "ModelRunner",
    "RequestSource",
    "bytes_per_token",
]
