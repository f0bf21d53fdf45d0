"""The run folder: written atomically, read back equal, and created without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.recipe_loading import recipe
from stemma.training.budget import Budget
from stemma.training.run_folder import (
    RunConfig,
    TextReadingOptions,
    create_run,
    is_corpus,
    is_pipe,
    read_result,
    read_run,
    resolve_corpus_argument,
    spool_streams,
)


def test_a_run_folder_is_read_back_equal(tmp_path):
    plan = RunConfig(None, ["a.txt"], Budget("tokens", 500), 7, "model",
                     TextReadingOptions(documents="line", errors="replace"),
                "f" * 64, True)
    resolved = recipe("bert@mini", ["network.layers=3"])
    create_run(tmp_path / "run", resolved, plan, overwrite=False)
    again, stored = read_run(tmp_path / "run")
    assert stored == plan and again == resolved and again.origin == resolved.origin
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checksums.json", "recipe.toml", "run", "run.json"]
    assert read_result(tmp_path / "run") is None


def test_text_from_a_pipe_is_stored_in_the_run(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"only once\n",))
    writer.start()
    create_run(tmp_path / "run", recipe("bert@tiny"), RunConfig(None, [str(pipe)], Budget("steps", 1), 0),
               overwrite=False)
    writer.join()
    [stored] = read_run(tmp_path / "run")[1].text
    assert Path(stored).parent == tmp_path / "run" and Path(stored).read_text() == "only once\n"


def test_regular_files_are_not_copied_into_the_run(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    paths = [str(tmp_path / "a.txt"), str(tmp_path), str(tmp_path / "gone")]
    assert not any(map(is_pipe, paths)) and is_pipe("-")
    assert spool_streams(paths, tmp_path) == paths


def test_a_corpus_is_distinguished_from_text(tmp_path, corpus_folder, monkeypatch):
    assert resolve_corpus_argument([str(corpus_folder)]) == (str(corpus_folder.resolve()), [])
    (tmp_path / "manifest.json").write_text('{"format": "somebody else\'s"}')
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    assert not is_corpus(tmp_path) and resolve_corpus_argument(["."]) == (None, [str(tmp_path)])
    assert resolve_corpus_argument(["*.txt"]) == (None, [str(tmp_path / "*.txt")])
    assert resolve_corpus_argument(["-"]) == (None, ["-"])
    with pytest.raises(UserError, match="cannot be mixed"):
        resolve_corpus_argument(["-", "a.txt"])
    with pytest.raises(UserError) as refusal:
        resolve_corpus_argument(["b.txt"])
    assert refusal.value.message.startswith("cannot read b.txt: ")  # the path as the user wrote it


@pytest.mark.parametrize(("steps", "tokens", "minutes", "expected"), [
    (5, None, None, Budget("steps", 5)), (None, 9, None, Budget("tokens", 9)),
    (None, None, 0.5, Budget("minutes", 0.5)), (None, None, None, Budget("steps", 77)),
])
def test_budgets_are_read_from_options_and_measure_progress(steps, tokens, minutes, expected):
    assert Budget.from_options(steps, tokens, minutes, 77) == expected
    used = expected.progress(step=5, tokens=9, seconds=30.0)
    assert used == (5 / 77 if expected.amount == 77 else 1.0)
    assert expected.describe() == {"steps": f"{expected.amount:g} steps", "tokens": "9 tokens",
                                   "minutes": "0.5 minutes"}[expected.unit]


def test_a_run_folder_is_created_without_importing_torch():
    code = ("import sys, stemma.training.pretrain, stemma.training.run_folder, stemma.training.corpus_cache;"
            "import stemma.training.budget; print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
