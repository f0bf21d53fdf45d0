"""The house's rules: imports point downward only, and what need not wait for torch does not wait for it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stemma

ROOT = Path(stemma.__file__).parent
# From the top of the house down; a room may use those below it, and its own.
FLOORS = ["cli", "extend", "api", "lab", "evaluation", "tasks", "generation", "training", "exchange", "model",
          "task_config", "objectives", "network",
          "visibility", "corpus", "text", "recipe_loading", "recipe_files", "toml", "schema", "plugins", "registry",
          "checksummed_files", "atomic_files", "temporary_files", "json_files", "progress", "device", "notes", "errors",
          "version"]
LEVEL = {room: len(FLOORS) - number for number, room in enumerate(FLOORS)}
WITHOUT_TORCH = ["cli", "extend", "plugins", "text", "corpus", "schema", "registry", "recipe_loading", "recipe_files",
                 "toml", "checksummed_files", "atomic_files", "temporary_files", "json_files", "progress", "device", "notes", "errors",
          "version"]
WITHOUT_TORCH_FILES = ["network/position_kinds.py", "network/kinds.py", "network/attention/kinds.py",
                       "network/attention/__init__.py", "training/optimizers.py", "training/schedules.py",
                       "training/run_folder.py", "training/budget.py", "training/corpus_cache.py",
                       "training/pretrain.py",
                       "training/run_lock.py"]
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
# objectives are registered with the settings that recipes are checked against; only what holds tensors imports torch
WITHOUT_TORCH_FILES += [str(file) for file in FILES if file.parts[0] == "objectives" and file.name != "batch.py"]
WITHOUT_TORCH_FILES += [str(file) for file in FILES if file.parts[:2] == ("tasks", "kinds")]  # `--help` lists them


def room_of(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also of those inside functions and behind TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def at_module_level(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that run when the module is imported: not those in functions or behind TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(node)
        else:
            waiting += list(ast.iter_child_nodes(node))


def upward(source: str, room: str) -> list[str]:
    wrong = []
    for line, module in imported(ast.parse(source)):
        parts = module.split(".")
        if parts[0] != "stemma" or len(parts) < 2 or parts[1] == room:
            continue
        other = parts[1]
        known = other in LEVEL or not ((ROOT / other).exists() or (ROOT / f"{other}.py").exists())
        assert known, f"line {line}: {other} has no floor in this test yet"
        if other in LEVEL and LEVEL[other] >= LEVEL[room]:
            wrong.append(f"line {line}: {room} imports {module}")
    return wrong


@pytest.mark.parametrize("file", [f for f in FILES if len(f.parts) > 1 or room_of(f) in LEVEL], ids=str)
def test_imports_point_downward(file):
    assert room_of(file) in LEVEL, f"{file} stands in a room that has no floor in this test yet"
    assert upward((ROOT / file).read_text(), room_of(file)) == []


def test_every_module_has_a_floor():
    rooms = {room_of(file) for file in FILES} - {"__init__", "__main__"}
    assert rooms <= LEVEL.keys()


def test_this_test_can_see_upward_imports():
    for source in ("from stemma.training.loop import Loop", "import stemma.cli", "from stemma import lab",
                   "def f():\n    from stemma.objectives import Batch",
                   "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stemma.model import Model"):
        assert upward(source, "network")
        assert not upward(source, "cli")


@pytest.mark.parametrize("file", [f for f in FILES if room_of(f) in WITHOUT_TORCH or str(f) in WITHOUT_TORCH_FILES],
                         ids=str)
def test_torch_is_not_imported_at_module_level(file):
    heavy = [module for _, module in at_module_level(ast.parse((ROOT / file).read_text()))
             if module.split(".")[0] in ("torch", "safetensors", "transformers")]
    assert heavy == []


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name.split(".")[0] for name in run.stdout.split()}


def test_importing_stemma_is_light():
    loaded = loaded_after("import stemma")
    assert "stemma" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "tokenizers", "typer", "rich", "matplotlib", "safetensors"}


@pytest.mark.parametrize("module", ["stemma.cli", "stemma.training.pretrain", "stemma.corpus.sampler"])
def test_what_runs_before_the_first_step_does_not_wait_for_torch(module):
    assert "torch" not in loaded_after(f"import {module}")


@pytest.mark.parametrize("statement", [
    'import stemma; stemma.recipe("ernie-2")', 'import stemma; stemma.recipe("bert").diff("t5")',
    'from stemma import registry; [*map(registry.entries, ("objective", "packing", "optimizer", "schedule", "task"))]',
    'from stemma.cli import app; app(["finetune", "--help"], standalone_mode=False)',
    'from stemma.cli import app; app(["show", "unilm"], standalone_mode=False)'])
def test_a_recipe_is_read_and_checked_without_torch(statement):
    assert "torch" not in loaded_after(statement)
