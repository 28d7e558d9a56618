"""The toy codec and what upstream computed with it."""

from __future__ import annotations

import pytest
from torch import Tensor

from fishcli.codec import Codec, load_codec
from tests.conftest import CPU, TOY, golden_tensors


@pytest.fixture(scope="session")
def codec() -> Codec:
    return load_codec(TOY, CPU)


@pytest.fixture(scope="session")
def golden() -> dict[str, Tensor]:
    return golden_tensors("codec")
