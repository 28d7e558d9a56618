"""The AR engine: continuous batching of frames over a fixed number of slots."""

from fishcli.engine.cache import bytes_per_token
from fishcli.engine.engine import Engine, EngineSettings, EngineStats, ListSource, RequestSource
from fishcli.engine.runner import ModelRunner

__all__ = [
    "Engine",
    "EngineSettings",
    "EngineStats",
    "ListSource",
    "ModelRunner",
    "RequestSource",
    "bytes_per_token",
]
