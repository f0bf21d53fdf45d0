"""Import rules: modules import only from lower layers, and light modules do not import torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stemma

ROOT = Path(stemma.__file__).parent
# From the top layer down; a package may import from those below it, and from itself.
LAYERS = ["cli", "extend", "api", "lab", "evaluation", "tasks", "generation", "training", "exchange", "model",
          "task_config", "pretraining_record", "objectives", "network", "visibility", "corpus", "counts", "vectors",
          "text", "recipe_loading", "recipe_files", "toml", "schema", "plugins", "registry",
          "checksummed_files", "atomic_files", "temporary_files", "json_files", "progress", "device", "notes", "errors",
          "version"]
LEVEL = {package: len(LAYERS) - index for index, package in enumerate(LAYERS)}
WITHOUT_TORCH = ["cli", "extend", "plugins", "text", "counts", "vectors", "corpus", "schema", "registry",
                 "recipe_loading", "recipe_files", "toml", "checksummed_files", "atomic_files", "temporary_files",
                 "json_files", "progress", "device", "notes", "errors", "version", "pretraining_record"]
WITHOUT_TORCH_FILES = ["network/position_kinds.py", "network/kinds.py", "network/attention/kinds.py",
                       "network/attention/__init__.py", "training/optimizers.py", "training/schedules.py",
                       "training/run_folder.py", "training/budget.py", "training/corpus_cache.py",
                       "training/pretrain.py", "training/run_lock.py"]
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
# Checking a recipe imports the objectives with their settings, so only modules with tensors may import torch.
WITHOUT_TORCH_FILES += [str(file) for file in FILES if file.parts[0] == "objectives" and file.name != "batch.py"]
WITHOUT_TORCH_FILES += [str(file) for file in FILES if file.parts[:2] == ("tasks", "kinds")]  # `--help` lists them


def package_of(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, including those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def module_level_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that run when the module is imported: not those in functions or under TYPE_CHECKING."""
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        else:
            stack += list(ast.iter_child_nodes(node))


def upward_imports(source: str, package: str) -> list[str]:
    problems = []
    for line, module in imports(ast.parse(source)):
        parts = module.split(".")
        if parts[0] != "stemma" or len(parts) < 2 or parts[1] == package:
            continue
        other = parts[1]
        is_module = (ROOT / other).exists() or (ROOT / f"{other}.py").exists()
        assert other in LEVEL or not is_module, f"line {line}: {other} has no layer in this test yet"
        if other in LEVEL and LEVEL[other] >= LEVEL[package]:
            problems.append(f"line {line}: {package} imports {module}")
    return problems


@pytest.mark.parametrize("file", [f for f in FILES if len(f.parts) > 1 or package_of(f) in LEVEL], ids=str)
def test_modules_import_only_from_lower_layers(file):
    assert package_of(file) in LEVEL, f"{file} is in a package that has no layer in this test yet"
    assert upward_imports((ROOT / file).read_text(), package_of(file)) == []


def test_every_module_has_a_layer():
    packages = {package_of(file) for file in FILES} - {"__init__", "__main__"}
    assert packages <= LEVEL.keys()


def test_upward_imports_are_detected():
    for source in ("from stemma.training.loop import Loop", "import stemma.cli", "from stemma import lab",
                   "def f():\n    from stemma.objectives import Batch",
                   "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stemma.model import Model"):
        assert upward_imports(source, "network")
        assert not upward_imports(source, "cli")


@pytest.mark.parametrize("file", [f for f in FILES if package_of(f) in WITHOUT_TORCH or str(f) in WITHOUT_TORCH_FILES],
                         ids=str)
def test_torch_is_not_imported_at_module_level(file):
    heavy = [module for _, module in module_level_imports(ast.parse((ROOT / file).read_text()))
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
def test_modules_needed_before_the_first_step_do_not_import_torch(module):
    assert "torch" not in loaded_after(f"import {module}")


@pytest.mark.parametrize("statement", [
    'import stemma; stemma.recipe("ernie-2")', 'import stemma; stemma.recipe("bert").diff("t5")',
    'from stemma import registry; [*map(registry.entries, ("objective", "packing", "optimizer", "schedule", "task"))]',
    'from stemma.cli import app; app(["finetune", "--help"], standalone_mode=False)',
    'from stemma.cli import app; app(["show", "unilm"], standalone_mode=False)'])
def test_recipes_and_help_do_not_import_torch(statement):
    assert "torch" not in loaded_after(statement)
