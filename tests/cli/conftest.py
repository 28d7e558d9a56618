"""Runs the command line in this process, with the settings of a test machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fishcli.cli.app import command_line

SAMPLES = Path(__file__).parents[2] / "samples"

Fishcli = Callable[..., Result]


@pytest.fixture
def fishcli(monkeypatch, tmp_path) -> Fishcli:
    """``fishcli("check", path)`` → a result with exit_code, stdout and stderr."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("FISHCLI_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(command_line(), [str(argument) for argument in arguments])

    return run
