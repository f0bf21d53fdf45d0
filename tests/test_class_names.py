"""Every public class name is defined once, so that a name identifies its class."""

import ast
from collections import defaultdict
from pathlib import Path

import stemma

ROOT = Path(stemma.__file__).parent


def definitions(root: Path) -> dict[str, list[str]]:
    """Where each public class is defined: "network/block.py:12"."""
    locations = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                locations[node.name].append(f"{file.relative_to(root)}:{node.lineno}")
    return locations


def test_every_public_class_name_is_defined_once():
    assert {name: where for name, where in definitions(ROOT).items() if len(where) > 1} == {}


def test_duplicate_class_names_are_detected(tmp_path):
    (tmp_path / "one.py").write_text("class Cat: ...\nclass _Own: ...\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.py").write_text("class Dog: ...\n\n\nclass Cat:\n    class _Own: ...\n")
    assert definitions(tmp_path) == {"Dog": ["deep/two.py:1"], "Cat": ["deep/two.py:4", "one.py:1"]}
