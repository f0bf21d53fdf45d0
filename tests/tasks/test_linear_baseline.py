"""The linear baseline: it learns from words, from characters without word boundaries, and from pairs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stemma.tasks.linear_baseline import LinearBaseline

SETS = {"english": (("a good film",), ("a bad film",)), "chinese": (("这本书很好看",), ("这本书很无聊",)),
        "pair": (("a film", "good"), ("a film", "bad"))}


@pytest.mark.parametrize("name", SETS)
def test_it_learns_and_is_deterministic(name):
    texts, labels = list(SETS[name]) * 10, ["yes", "no"] * 10
    first, second = LinearBaseline(texts, labels), LinearBaseline(texts, labels)
    assert first.predict(SETS[name]) == second.predict(SETS[name]) == ["yes", "no"]
    assert (first.classifier.coef_ == second.classifier.coef_).all()


def test_scikit_learn_is_imported_late():
    code = "import sys, stemma.tasks.linear_baseline; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
