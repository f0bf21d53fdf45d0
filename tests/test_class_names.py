"""A public class is the only one of its name, so that whoever reads the name knows which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import stemma

ROOT = Path(stemma.__file__).parent
# Names that stand for several classes still. A rename makes them one each; this list must become empty.
KNOWN = {
    "Adafactor", "Asked", "Batch", "Block", "Choice", "Classify", "Convolution", "Course", "Data", "Dialogue",
    "Entry", "Example", "FullAttention", "Group", "Hidden", "Judged", "Lamb", "Layout", "Learned", "Linear",
    "Model", "Muon", "Numbers", "Page", "Pair", "Position", "Question", "Reading", "Row", "Scored", "Settings",
    "Side", "Sinusoidal", "Slot", "StableAdamW", "Stage", "Stages", "Step", "Stream", "Stretch", "Table",
    "Task", "Translation", "Trial", "Window", "Work", "Writing",
}


def places(root: Path) -> dict[str, list[str]]:
    """Where each public class is defined: "network/block.py:12"."""
    found = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{file.relative_to(root)}:{node.lineno}")
    return found


def test_every_public_class_name_is_defined_once():
    several = {name: where for name, where in places(ROOT).items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in KNOWN} == {}
    assert several.keys() >= KNOWN, f"once each by now, so take them off the list: {sorted(KNOWN - several.keys())}"


def test_a_second_class_of_a_name_is_found(tmp_path):
    (tmp_path / "one.py").write_text("class Cat: ...\nclass _Own: ...\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.py").write_text("class Dog: ...\n\n\nclass Cat:\n    class _Own: ...\n")
    assert places(tmp_path) == {"Dog": ["deep/two.py:1"], "Cat": ["deep/two.py:4", "one.py:1"]}
