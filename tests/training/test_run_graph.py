"""The graph of runs: numbers that stay what they are, and work that is done once."""

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

FACTS = ("recipe", {"b": [1, 2.5], "a": None}, 3)


def test_numbers_are_what_they_were_when_labs_and_pipelines_were_made():
    """Pinned: with another number everything that lies on people's disks would be made anew."""
    plain = hashlib.sha256(b'["recipe", {"a": null, "b": [1, 2.5]}, 3]').hexdigest()
    assert cells.short_digest(*FACTS) == plain[:16] == "65b10fde63bfd170"
    assert provenance.digest(*FACTS) == hashlib.sha256(json.dumps([1, *FACTS], sort_keys=True).encode()).hexdigest()


def test_a_node_is_done_when_it_found_something_or_never_will(tmp_path):
    node = RunNode(tmp_path / "cells" / "one", "delete it.")
    with node.lock():
        assert node.result() is None and node.failure_reason() is None
        node.finish({"score": 1.5})
    other = RunNode(tmp_path / "cells" / "two", "delete it.")
    with other.lock():
        other.fail("it diverged")
    assert node.result() == {"score": 1.5} and other.failure_reason() == "it diverged" and other.result() is None


def hold(folder, taken, leave):
    with RunNode(folder, "").lock():
        taken.set()
        leave.wait(30)


def test_one_process_at_a_time_holds_a_node(tmp_path):
    context = multiprocessing.get_context("fork")
    taken, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "node", taken, leave))
    process.start()
    try:
        assert taken.wait(30)
        with pytest.raises(FolderLockedError), RunNode(tmp_path / "node", "").lock():
            pass
    finally:
        leave.set()
        process.join()
    with RunNode(tmp_path / "node", "").lock():
        pass


def test_a_run_is_begun_once_and_then_gone_on_with(tmp_path):
    done = []

    def begin(run):
        run.mkdir()
        (run / CONFIG).write_text("{}")
        done.append("begun")
        return {}

    for _ in range(2):
        run_or_resume(tmp_path / "stages" / "a", begin, lambda run: done.append("gone on") or {})
    assert done == ["begun", "gone on"]


@pytest.mark.parametrize("name", [None, "stage"])
def test_what_was_found_is_remembered_by_its_number(tmp_path, name):
    made = []

    def make():
        made.append(1)
        return {"loss": len(made)}

    asked = [cached_result(tmp_path / "measures.json", name, number, "delete it.", make)["loss"]
             for number in ("a", "a", "b", "b")]
    assert asked == [1, 1, 2, 2]
