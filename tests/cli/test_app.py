"""What every command has in common: help, exit codes, errors of one line."""

import subprocess
import sys

import pytest
import typer

from fishcli.cli import check as check_module
from fishcli.cli.app import command_line
from fishcli.settings import SynthSettings

COMMANDS = typer.main.get_command(command_line()).commands


@pytest.mark.parametrize("name", ["synth", "clone", "bench", "check", "report", "doctor"])
def test_every_command_explains_itself(fishcli, name):
    result = fishcli(name, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def flags(name: str) -> dict[str, object]:
    return {flag: option for option in COMMANDS[name].params for flag in option.opts}


def test_synth_has_the_flags_of_the_design():
    wanted = (
        "model max-batch-size temperature top-p top-k max-new-tokens seed ref ref-text voice takes "
        "voice-pool format subtype layout retry-failed overwrite limit dry-run deterministic "
        "no-cuda-graph time-limit plan-window device out"
    )
    assert {f"--{name}" for name in wanted.split()} <= set(flags("synth"))


def test_every_option_has_a_help_text():
    for command in COMMANDS.values():
        for option in command.params:
            assert getattr(option, "help", None), (command.name, option.name)


def test_the_defaults_that_help_shows_are_those_of_the_config():
    defaults = SynthSettings.defaults()
    sampling = defaults.sampling
    wanted = {
        "--model": defaults.model,
        "--device": defaults.device,
        "--max-batch-size": "auto" if defaults.max_batch_size is None else "?",
        "--plan-window": defaults.plan_window,
        "--temperature": sampling.temperature,
        "--top-p": sampling.top_p,
        "--top-k": sampling.top_k,
        "--max-new-tokens": defaults.max_new_tokens,
        "--seed": defaults.seed,
        "--takes": defaults.takes,
        "--format": defaults.audio_format,
        "--subtype": defaults.subtype,
        "--layout": defaults.layout,
    }
    shown = {flag: option.show_default for flag, option in flags("synth").items()}
    assert {flag: shown[flag] for flag in wanted} == {k: str(v) for k, v in wanted.items()}


def test_the_version_is_shown(fishcli):
    assert fishcli("--version").stdout.startswith("fishcli 0.")


def test_an_error_is_one_line_on_standard_error(fishcli):
    result = fishcli("check", "absent.jsonl")
    assert result.exit_code == 2
    assert result.stderr == "fishcli: error: absent.jsonl does not exist\n"
    assert result.stdout == ""


def test_debug_shows_the_traceback(fishcli, monkeypatch):
    result = fishcli("--debug", "check", "absent.jsonl")
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("fishcli: error: absent.jsonl does not exist\n")
    monkeypatch.setenv("FISHCLI_DEBUG", "1")
    assert "Traceback" in fishcli("check", "absent.jsonl").stderr


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (ZeroDivisionError("by zero"), 1, "fishcli: error: unexpected ZeroDivisionError: by zero"),
        (PermissionError(13, "denied"), 1, "fishcli: error: unexpected PermissionError"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_nobody_expected_is_one_line_too(
    fishcli, monkeypatch, tmp_path, error, exit_code, line
):
    def fail(_source):
        raise error

    monkeypatch.setattr(check_module, "_read", fail)
    (tmp_path / "m.jsonl").write_text('{"text": "Hello."}\n')
    result = fishcli("check", "m.jsonl")
    assert result.exit_code == exit_code
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == bool(line)


@pytest.mark.parametrize(
    "arguments",
    [
        ("synth",),
        ("synth", "m.jsonl"),
        ("synth", "m.jsonl", "--out", "o", "--top-k", "many"),
        ("x",),
    ],
)
def test_bad_usage_exits_with_2(fishcli, arguments):
    assert fishcli(*arguments).exit_code == 2


def test_the_installed_script_is_the_same_command():
    code = "from fishcli.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "absent.jsonl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "fishcli: error: absent.jsonl does not exist\n"
