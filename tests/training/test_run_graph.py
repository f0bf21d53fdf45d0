"""The graph of runs: stable digests, and results that are computed once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing

import pytest

from stemma.atomic_files import FolderLockedError
from stemma.lab import cells
from stemma.tasks.pipeline import provenance
from stemma.training.run_folder import CONFIG
from stemma.training.run_graph import RunNode, cached_result, run_or_resume

INPUTS = ("recipe", {"b": [1, 2.5], "a": None}, 3)


def test_digests_of_cells_and_stages_never_change():
    """With other digests, all existing labs and pipelines would be computed again."""
    plain = hashlib.sha256(b'["recipe", {"a": null, "b": [1, 2.5]}, 3]').hexdigest()
    assert cells.short_digest(*INPUTS) == plain[:16] == "65b10fde63bfd170"
    assert provenance.digest(*INPUTS) == hashlib.sha256(json.dumps([1, *INPUTS], sort_keys=True).encode()).hexdigest()


def test_a_node_is_done_with_a_result_or_a_failure(tmp_path):
    node = RunNode(tmp_path / "cells" / "one", "delete it.")
    with node.lock():
        assert node.result() is None and node.failure_reason() is None
        node.finish({"score": 1.5})
    other = RunNode(tmp_path / "cells" / "two", "delete it.")
    with other.lock():
        other.fail("it diverged")
    assert node.result() == {"score": 1.5} and other.failure_reason() == "it diverged" and other.result() is None


def lock_until(folder, locked, release):
    with RunNode(folder, "").lock():
        locked.set()
        release.wait(30)


def test_a_node_is_locked_by_one_process(tmp_path):
    context = multiprocessing.get_context("fork")
    locked, release = context.Event(), context.Event()
    process = context.Process(target=lock_until, args=(tmp_path / "node", locked, release))
    process.start()
    try:
        assert locked.wait(30)
        with pytest.raises(FolderLockedError), RunNode(tmp_path / "node", "").lock():
            pass
    finally:
        release.set()
        process.join()
    with RunNode(tmp_path / "node", "").lock():
        pass


def test_run_or_resume_starts_a_run_once_and_resumes_it_later(tmp_path):
    calls = []

    def begin(run):
        run.mkdir()
        (run / CONFIG).write_text("{}")
        calls.append("started")
        return {}

    for _ in range(2):
        run_or_resume(tmp_path / "stages" / "a", begin, lambda run: calls.append("resumed") or {})
    assert calls == ["started", "resumed"]


@pytest.mark.parametrize("name", [None, "stage"])
def test_results_are_cached_by_digest(tmp_path, name):
    calls = []

    def make():
        calls.append(1)
        return {"loss": len(calls)}

    losses = [cached_result(tmp_path / "measures.json", name, digest, "delete it.", make)["loss"]
              for digest in ("a", "a", "b", "b")]
    assert losses == [1, 1, 2, 2]
