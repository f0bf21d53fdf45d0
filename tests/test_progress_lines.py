"""Progress: plain lines if stderr is not a terminal, otherwise a bar. The clock is simulated, so tests do not wait."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from generation.seq2seq_models import build_seq2seq_model, sentences
from progress_recorder import recorded_stages
from rich.console import Console

from stemma import progress
from stemma.corpus.build import build_corpus
from stemma.progress import ProgressLines, format_duration, progress_stage, report_to
from stemma.text.train_tokenizer import train_tokenizer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines():
    progress_lines = ProgressLines(io.StringIO(), Clock())
    with report_to(progress_lines):
        yield progress_lines


def wait(lines: ProgressLines, seconds: float) -> str:
    """Advance the clock; returns what is printed then."""
    lines.stream.truncate(0)
    lines.stream.seek(0)
    lines.now.now += seconds
    lines.print_if_due()
    return lines.stream.getvalue()


def test_the_first_line_comes_after_30_seconds_and_intervals_grow_to_10_minutes(lines):
    times = []
    with progress_stage("tokenising"):
        for second in range(24 * 3600):
            if wait(lines, 1):
                times.append(second + 1)
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert times[:4] == [30, 90, 165, 259]
    assert gaps == sorted(gaps) and max(gaps) == 600 and 100 < len(times) < 200


def test_a_line_has_count_total_elapsed_and_remaining_time(lines):
    with progress_stage("tokenising", 28_400_000, "bytes") as work:
        work.set_count(7_100_000)
        assert wait(lines, 29) == ""
        assert wait(lines, 1) == "progress: tokenising · 25% · 7.1 of 28.4 MB · 0:30 · 1:30 left\n"
    with progress_stage("predicting", unit="rows") as work:
        work.advance()
        work.advance(1_199)
        assert wait(lines, 60) == "progress: predicting · 1,200 rows · 1:00\n"
    with progress_stage("learning a vocabulary"):
        assert wait(lines, 75) == "progress: learning a vocabulary · 1:15\n"
    assert wait(lines, 3600) == ""  # no stage is running


def test_a_line_names_all_nested_stages(lines):
    with progress_stage("cell 2 of 6: bert@tiny, seed 0"), progress_stage("training bert@tiny") as training:
        training.set_fraction(0.38, "step 2,310 · loss 4.81")
        assert wait(lines, 30) == ("progress: cell 2 of 6: bert@tiny, seed 0 · training bert@tiny · 38% · step 2,310 · "
                                   "loss 4.81\n")
        with progress_stage("validating", 40, "batches") as validating:
            validating.advance(10)
            assert wait(lines, 60).endswith(" · loss 4.81 · validating · 25% · 10 of 40 batches · 1:00 · 3:00 left\n")


def test_a_stage_that_raises_is_removed(lines):
    with pytest.raises(ValueError), progress_stage("tokenising"):
        raise ValueError
    assert lines.stages == []


def test_nothing_is_printed_without_show_progress(capfd):
    with progress_stage("tokenising", 3) as work:
        work.advance()
    assert capfd.readouterr() == ("", "")


def test_slow_operations_report_their_progress(tmp_path, text_file):
    import stemma
    from stemma.tasks.embed import embed

    with recorded_stages() as stages:
        tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 320, lowercase=True)
        build_corpus([text_file], tokenizer, tmp_path / "corpus", workers=1)
        stemma.pretrain("bert@tiny", tmp_path / "corpus", tmp_path / "run", steps=1,
                        changes=["network.width=16", "training.batch_size=2", "training.threads=1"])
        embed(stemma.load(tmp_path / "run"), ["a letter", "the margin"])
        stemma.translate(build_seq2seq_model("transformer"), sentences(2, 3), beams=1, max_extra=1)
    assert "learning a vocabulary" in stages
    done, total = stages["tokenising"]
    assert total == text_file.stat().st_size and 0.9 * total < done <= total
    assert stages["training bert@tiny"] == (1.0, 1.0)
    done, total = stages["validating"]
    assert done == total > 0
    assert stages["embedding"] == stages["translating"] == (2, 2)


def test_a_terminal_shows_only_the_bar_of_the_outer_stage(monkeypatch):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(progress._state, "terminal", console)
    monkeypatch.setattr(progress._state, "lines", None)
    with progress_stage("tokenising", 4, "rows") as work, progress_stage("inside", 2) as inner:
        inner.advance()
        work.advance()
    assert "tokenising" in stream.getvalue() and "1 of 4 rows" in stream.getvalue()
    assert "inside" not in stream.getvalue() and not progress._state.drawn
    before = len(stream.getvalue())
    with progress_stage("training", bar="own"), progress_stage("validating"):
        pass
    assert len(stream.getvalue()) == before


SLOW = """
import sys, time
from stemma import cli, progress, recipe_loading
progress.FIRST_LINE_SECONDS, progress.POLL_SECONDS = 0.2, 0.05

def list_recipes():
    with progress.progress_stage("reading recipes", 4, "files") as stage:
        stage.advance()
        time.sleep(1)  # one long call
    return []

recipe_loading.list_recipes = list_recipes
sys.exit(cli.main(["tree", "--json"]))
"""


def test_a_command_prints_lines_on_stderr_and_one_object_on_stdout():
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == {"recipes": []} and done.stdout.count("\n") == 1
    assert done.stderr.splitlines()[0].startswith("progress: reading recipes · 25% · 1 of 4 files · 0:0")
    assert done.returncode == 0


def test_a_command_on_a_terminal_draws_a_bar_and_prints_no_lines():
    parent_end, child_end = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=child_end, text=True,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(child_end)
    drawn, deadline = b"", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([parent_end], [], [], 0.05)[0]:
            try:
                drawn += os.read(parent_end, 65536)
            except OSError:
                break
    assert json.loads(process.communicate(timeout=60)[0]) == {"recipes": []}
    os.close(parent_end)
    assert b"1 of 4 files" in drawn and b"progress:" not in drawn


def test_durations_are_formatted_as_minutes_or_hours():
    assert [format_duration(seconds) for seconds in (-3, 0, 59.6, 3599)] == ["0:00", "0:00", "1:00", "59:59"]
    assert [format_duration(seconds) for seconds in (3600, 4000)] == ["1:00:00", "1:06:40"]
