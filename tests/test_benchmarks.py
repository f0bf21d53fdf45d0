"""Benchmarks are run by hand; a name of ours that they import and that is gone is found here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


def imported(script: Path) -> list[tuple[str, str]]:
    """(module, name) of all that a script imports of ours, inside functions too."""
    return [(node.module, alias.name) for node in ast.walk(ast.parse(script.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stemma"
            for alias in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_benchmark_imports_exists(script):
    missing = []
    for module, name in imported(script):
        if not hasattr(importlib.import_module(module), name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module}.{name}")
    assert missing == []


def test_most_of_them_import_something():
    assert sum(bool(imported(script)) for script in SCRIPTS) > len(SCRIPTS) / 2
