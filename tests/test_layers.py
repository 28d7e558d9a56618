"""Imports point one way, planning never loads torch, and importing a module does nothing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BASE = {"errors", "channel", "estimate", "records"}
PLANNING = {
    "settings",
    "manifest",
    "fingerprint",
    "outdir",
    "ledger",
    "plan",
    "card",
    "results",
    "metrics",
    "plots",
    "overview",
    "page",
    "report",
}
MODELS = {"kernels", "codec", "model"}
STEPS = {"threads", "audio", "voices", "prompt", "engine", "decoder", "writer"}
CHECKPOINT = {"hub", "checkpoint"}

# Module or package → what it may import of fishcli besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "__main__": {"cli"},
    "errors": set(),
    "channel": set(),
    "estimate": set(),
    "records": {"errors"},
    **dict.fromkeys(PLANNING, BASE | PLANNING),
    "kernels": set(),
    "codec": {"kernels", "errors"},
    "model": {"kernels", "errors"},
    "engine": BASE | {"kernels", "model"},
    "audio": BASE | {"settings"},
    "voices": BASE | PLANNING | {"audio", "codec"},
    "prompt": BASE | {"model"},
    "threads": set(),
    "decoder": BASE | {"codec", "threads"},
    "writer": BASE | PLANNING | {"audio", "decoder"},
    "hub": {"errors"},
    "checkpoint": {"errors", "settings", "hub"} | MODELS,
    "asr": {"errors"},
    "pipeline": BASE | PLANNING | MODELS | STEPS | CHECKPOINT,
    "doctor": BASE | PLANNING | MODELS | STEPS | CHECKPOINT | {"pipeline", "asr"},
    "bench": BASE | PLANNING | MODELS | STEPS | CHECKPOINT | {"pipeline"},
    "cli": BASE | PLANNING | MODELS | STEPS | CHECKPOINT | {"pipeline", "asr", "doctor", "bench"},
}
NO_TORCH = BASE | PLANNING | {"hub", "asr"}
HEAVY = ("torch", "transformers", "triton", "datasets", "ray")


def module_name(file: Path, base: Path) -> str:
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(("fishcli", *parts)).removesuffix(".__init__")


def place(module: str) -> str:
    """``fishcli.engine.scheduler`` → ``engine``; the package itself → ``""``."""
    return module.removeprefix("fishcli").lstrip(".").split(".")[0]


def run_time_imports(node: ast.AST) -> Iterator[str]:
    """Every module imported anywhere under ``node``, but for type checkers only ones."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        node = ast.Module(node.orelse, [])
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from run_time_imports(child)


def wrong_imports(module: str, source: str) -> list[str]:
    """Imports of ``module`` that its place forbids."""
    here, found = place(module), []
    if here not in MAY_IMPORT:
        return [f"{module}: {here} has no place in the order of layers"]
    for name in run_time_imports(ast.parse(source)):
        top = name.split(".")[0]
        if top in {"kernels", "codec", "configs"}:
            found.append(f"{module} imports {name}: it is fishcli.{name}")
        elif top == "torch" and here in NO_TORCH:
            found.append(f"{module} imports {name}, but planning never loads torch")
        elif name == "fishcli.__version__":
            continue
        elif top == "fishcli" and place(name) not in {here, *MAY_IMPORT[here]}:
            found.append(f"{module} imports {name}")
    return found


def work_at_import(module: str, source: str) -> list[str]:
    """Statements of ``module`` that do more than define something."""
    defining = (
        ast.Import,
        ast.ImportFrom,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.Assign,
        ast.AnnAssign,
        ast.If,
        ast.Try,
    )
    return [
        f"{module}, line {node.lineno}: {ast.unparse(node)[:60]}"
        for node in ast.parse(source).body
        if not isinstance(node, defining)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def sources() -> list[tuple[str, str]]:
    """Every module with its text. The links inside fishcli are not followed, so once each."""
    folders = [
        (ROOT / "fishcli", ROOT / "fishcli"),
        (ROOT / "kernels", ROOT),
        (ROOT / "codec", ROOT),
    ]
    return [
        (module_name(file, base), file.read_text(encoding="utf-8"))
        for folder, base in folders
        for file in sorted(folder.rglob("*.py"))
    ]


def test_all_packages_are_looked_at():
    seen = {place(module) for module, _ in sources()}
    assert {"codec", "kernels", "model", "manifest", "errors"} <= seen


def test_imports_point_downwards():
    assert [line for module, text in sources() for line in wrong_imports(module, text)] == []


def test_importing_a_module_does_no_work():
    assert [line for module, text in sources() for line in work_at_import(module, text)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fishcli.engine.cache", "from fishcli.codec import Codec"),
        ("fishcli.engine.cache", "def f():\n    import fishcli.pipeline"),
        ("fishcli.codec.model", "from fishcli import model"),
        ("fishcli.kernels.norm", "from fishcli.errors import RunError"),
        ("fishcli.plan", "import torch"),
        ("fishcli.plan", "def f():\n    from torch import Tensor"),
        ("fishcli.model.slow", "import kernels"),
        ("fishcli.novelty", ""),
    ],
)
def test_a_wrong_import_would_be_found(module, source):
    assert wrong_imports(module, source)


def test_an_import_for_type_checkers_is_fine():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"
    assert wrong_imports("fishcli.records", source) == []


@pytest.mark.parametrize("source", ["print('hello')", "for i in range(3):\n    x = i"])
def test_work_at_import_would_be_found(source):
    assert work_at_import("fishcli.plan", source)


def loaded_by(modules: list[str]) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after importing ``modules``."""
    lines = [f"import {module}" for module in modules]
    lines += ["import sys", f"print(*(m for m in {HEAVY} if m in sys.modules))"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_planning_loads_nothing_heavy():
    modules = [module for module, _ in sources() if place(module) in BASE | PLANNING]
    assert loaded_by(modules) == []


def test_the_command_line_starts_without_anything_heavy():
    assert loaded_by(["fishcli.cli.app"]) == []
