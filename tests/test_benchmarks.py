"""Benchmarks are run by hand; this test finds imports of names that no longer exist."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


def stemma_imports(script: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a script imports from stemma, also inside functions."""
    return [(node.module, alias.name) for node in ast.walk(ast.parse(script.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stemma"
            for alias in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_name_that_a_benchmark_imports_exists(script):
    missing = []
    for module, name in stemma_imports(script):
        if not hasattr(importlib.import_module(module), name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module}.{name}")
    assert missing == []


def test_most_benchmarks_import_stemma():
    assert sum(bool(stemma_imports(script)) for script in SCRIPTS) > len(SCRIPTS) / 2
