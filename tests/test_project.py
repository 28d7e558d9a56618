"""The package installs as fishcli alone, however it is installed, beside HF's ``kernels``."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("fishcli", "kernels", "codec", "configs", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built without network from a copy of the sources."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=leave)
        else:
            shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--quiet", "--wheel-dir", str(out)]
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, *options], cwd=copy, check=True)
    (built,) = out.glob("*.whl")
    return built


def facts(python_path: Path | None, cwd: Path) -> dict[str, str]:
    """Where a fresh interpreter finds things; ``python_path`` comes first if given."""
    code = """
import json, sys
sys.path[:0] = sys.argv[1:]
import kernels, transformers, fishcli, fishcli.kernels, fishcli.codec
from importlib import metadata, resources
transformers.Qwen3Model(transformers.Qwen3Config(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, vocab_size=64))
files = resources.files("fishcli")
print(json.dumps({
    "kernels": kernels.__file__, "kernels_version": kernels.__version__,
    "installed_kernels": metadata.version("kernels"),
    "ours": fishcli.kernels.__file__, "fishcli": fishcli.__file__,
    "codec": fishcli.codec.__file__,
    "config": (files / "configs" / "synth.json").is_file(),
    "checkpoint": (files / "checkpoints" / "toy" / "codec.pth").is_file(),
}))
"""
    paths = [str(python_path)] if python_path else []
    command = [sys.executable, "-P", "-c", code, *paths]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def check(found: dict[str, str], home: Path) -> None:
    assert found["kernels_version"] == found["installed_kernels"], "HF's kernels is shadowed"
    assert "fishcli" not in Path(found["kernels"]).parts
    assert Path(found["fishcli"]) == home / "fishcli" / "__init__.py"
    assert Path(found["ours"]) == home / "fishcli" / "kernels" / "__init__.py"
    assert Path(found["codec"]) == home / "fishcli" / "codec" / "__init__.py"
    assert found["config"]
    assert found["checkpoint"]


def test_the_wheel_holds_one_package_with_all_its_parts(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"fishcli"}
    assert {
        "fishcli/py.typed",
        "fishcli/records.py",
        "fishcli/kernels/reference.py",
        "fishcli/codec/model.py",
        "fishcli/configs/synth.json",
        "fishcli/configs/models/s2-pro.json",
        "fishcli/checkpoints/toy/codec.pth",
        "fishcli/checkpoints/toy/tokenizer.json",
    } <= names
    tracked = {
        f"fishcli/{path.relative_to(base)}"
        for base, folder in ((ROOT, "kernels"), (ROOT, "codec"), (ROOT / "fishcli", "."))
        for path in (base / folder).rglob("*.py")
    }
    assert tracked <= names


def test_an_installed_wheel_lives_beside_hf_kernels(wheel, tmp_path):
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel installs by unpacking
        archive.extractall(target)
    check(facts(target, tmp_path), target)


def test_an_editable_install_lives_beside_hf_kernels():
    check(facts(None, ROOT), ROOT)


def test_torch_and_triton_are_pinned_together():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert set(pins) == {"torch", "triton"}
    assert "-c constraints.txt" in (ROOT / "Makefile").read_text()


def test_ci_fails_when_nothing_is_collected(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 5
    assert (ROOT / ".ci" / "run").read_text().startswith("#!/usr/bin/env bash")
    assert "set -euo pipefail" in (ROOT / ".ci" / "run").read_text()
