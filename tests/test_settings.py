"""Run settings: read strictly, checked with field, value and allowed range."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fishcli.errors import UsageError
from fishcli.records import Reference, Sampling
from fishcli.settings import SynthSettings


def settings(**changes: object) -> SynthSettings:
    return replace(SynthSettings.defaults(), **changes)


def test_defaults_are_those_of_the_design():
    found = SynthSettings.defaults()
    assert found.sampling == Sampling(temperature=0.8, top_p=0.8, top_k=30)
    assert (found.max_new_tokens, found.seed, found.plan_window) == (4096, 0, 65536)
    assert (found.audio_format, found.subtype, found.layout) == ("wav", "PCM_16", "flat")
    assert found.max_batch_size is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"device": "cuda:x"}, "device is 'cuda:x': allowed is auto, cpu, cuda or cuda:N"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0: allowed is [1, 32768]"),
        ({"max_new_tokens": 10**9}, "max_new_tokens is 1000000000: allowed is [1, 32768]"),
        ({"seed": -1}, "seed is -1: allowed is [0, "),
        ({"takes": 0}, "takes is 0: allowed is [1, 1000]"),
        ({"plan_window": 0}, "plan_window is 0: allowed is [1, 1048576]"),
        ({"max_batch_size": 0}, "max_batch_size is 0: allowed is [1, 1024]"),
        ({"limit": 0}, "limit is 0: allowed is [1, inf]"),
        ({"time_limit_s": 0.0}, "time_limit is 0.0: allowed is (0, inf]"),
        ({"time_limit_s": float("nan")}, "time_limit is nan"),
        ({"audio_format": "mp3"}, "format is 'mp3': allowed is wav or flac"),
        ({"subtype": "MP3"}, "subtype is 'MP3': allowed is PCM_16 or PCM_24 or PCM_32 or FLOAT"),
        (
            {"audio_format": "flac", "subtype": "FLOAT"},
            "subtype is 'FLOAT': allowed is PCM_16 or PCM_24",
        ),
        ({"layout": "deep"}, "layout is 'deep': allowed is flat or hashed"),
        ({"retry_failed": True, "overwrite": True}, "retry-failed and overwrite"),
        (
            {"reference": Reference("voice", Path("v")), "voice_pool": Path("p")},
            "a reference and a voice pool",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(changes, message):
    with pytest.raises(UsageError) as error:
        settings(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modle": "mini"}', "unknown key 'modle'"),
        ('{"sampling": {"topk": 3}}', "sampling: unknown key 'topk'"),
        ('{"model": 3}', "Expected `str`, got `int` - at `$.model`"),
        ("{}", "missing required field"),
        ("{", "truncated"),
    ],
)
def test_a_file_of_settings_is_read_strictly(text, message):
    with pytest.raises(UsageError) as error:
        SynthSettings.from_json(text, "here.json")
    assert str(error.value).startswith("here.json: ")
    assert message in str(error.value)


def test_a_wrong_value_in_a_file_names_the_range():
    with pytest.raises(UsageError, match=r"takes is 0: allowed is \[1, 1000\]"):
        SynthSettings.from_json(
            '{"model":"m","device":"cpu","sampling":{},"max_new_tokens":1,"seed":0,"takes":0,'
            '"audio_format":"wav","subtype":"PCM_16","layout":"flat","deterministic":false,'
            '"max_batch_size":null,"plan_window":1}',
            "here.json",
        )


def test_run_wide_settings_leave_out_what_changes_no_file():
    plain = SynthSettings.defaults().run_wide()
    harmless = settings(
        device="cpu",
        max_batch_size=4,
        plan_window=10,
        cuda_graph=False,
        retry_failed=True,
        limit=3,
        time_limit_s=9.0,
    )
    assert harmless.run_wide() == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": Sampling(top_k=5)},
        {"max_new_tokens": 10},
        {"seed": 1},
        {"takes": 2},
        {"audio_format": "flac"},
        {"subtype": "PCM_24"},
        {"layout": "hashed"},
        {"deterministic": True},
    ],
)
def test_run_wide_settings_hold_what_changes_a_file(changes):
    assert settings(**changes).run_wide() != SynthSettings.defaults().run_wide()


def test_a_reference_is_recorded_by_content(tmp_path):
    clip, moved = tmp_path / "a.wav", tmp_path / "b.wav"
    clip.write_bytes(b"one")
    moved.write_bytes(b"one")
    first = settings(reference=Reference("audio", clip, "Text.")).run_wide()
    assert settings(reference=Reference("audio", moved, "Text.")).run_wide() == first
    clip.write_bytes(b"two")
    assert settings(reference=Reference("audio", clip, "Text.")).run_wide() != first


def test_a_missing_reference_is_one_line(tmp_path):
    absent = settings(reference=Reference("audio", tmp_path / "no.wav", "Text."))
    with pytest.raises(UsageError, match="no.wav cannot be read: No such file"):
        absent.run_wide()


def test_another_voice_in_the_pool_is_another_setting(tmp_path):
    (tmp_path / "a.wav").touch()
    first = settings(voice_pool=tmp_path).run_wide()
    (tmp_path / "b.wav").touch()
    assert settings(voice_pool=tmp_path).run_wide() != first


def test_settings_do_not_load_torch():
    code = "import sys, fishcli.settings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
