"""Resuming from every step, after the last step, and before the model is saved gives the same bytes."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest

from stemma.corpus.annotate import annotate
from stemma.errors import Interrupted, UserError
from stemma.training import pretrain as module
from stemma.training import trainer as loop_module
from stemma.training.pretrain import pretrain, resume

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "corpus.first_phase.fraction=0.5", "corpus.first_phase.sequence_length=16",
         "corpus.first_phase.batch_size=12", "corpus.first_phase.warmup_steps=2", "training.batch_size=8",
         "training.warmup_steps=2", "training.checkpoint_every=1", "training.keep_checkpoints=100",
         "training.log_every=1", "training.validate_every=3", "training.schedule.kind=linear"]
STEPS = 9


def weights(run):
    return (run / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, corpus_folder):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    pretrain("bert@tiny", corpus_folder, run, steps=STEPS, changes=SMALL)
    return run


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_resuming_from_any_step_gives_the_same_bytes(uninterrupted, tmp_path, step):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(run / f"checkpoints/step-{later}")
    result = resume(run)
    assert weights(run) == weights(uninterrupted)
    expected = json.loads((uninterrupted / "result.json").read_text())
    for name in ("steps", "tokens", "loss", "losses", "validation_loss", "unigram_loss"):
        assert result[name] == expected[name]
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    expected_lines = [json.loads(line) for line in (uninterrupted / "log.jsonl").read_text().splitlines()]
    untimed = [[{key: value for key, value in line.items() if "second" not in key} for line in log]
               for log in (lines, expected_lines)]
    assert untimed[0] == untimed[1]


def test_each_phase_has_its_own_batch_size_length_and_schedule(uninterrupted):
    """Of 9 steps the first 5 start before half of the budget is used. Each phase has its own warm-up of two steps."""
    log = [json.loads(line) for line in (uninterrupted / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if "learning_rate" in line]
    factors = [line["learning_rate"] / max(line["learning_rate"] for line in steps) for line in steps]
    assert factors[:2] == factors[5:7] == pytest.approx([0.5, 1])
    assert all(later < earlier for earlier, later in pairwise(factors[1:5])) and factors[7] > factors[8] > 0
    # linear decay from the second step of the phase to its end
    assert factors[2:5] == pytest.approx([1 - (n / 4.5 - 1 / 4.5) / (1 - 1 / 4.5) for n in (2, 3, 4)])
    start = (6 / 9 - 0.5) / 0.5
    assert factors[7:] == pytest.approx([1 - ((n / 9 - 0.5) / 0.5 - start) / (1 - start) for n in (7, 8)])
    tokens = [later["tokens"] - earlier["tokens"] for earlier, later in pairwise([{"tokens": 0}, *steps])]
    assert all(8 * 16 < count <= 12 * 16 for count in tokens[:5]) and all(count <= 8 * 32 for count in tokens[5:])
    assert min(tokens[5:]) > 12 * 16 * 0.8


def test_an_interruption_outside_the_steps_prints_the_resume_command(uninterrupted, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Corpus, "open", stop)
    with pytest.raises(Interrupted, match=f"`stemma resume {run}`"):
        resume(run)
    monkeypatch.undo()
    assert resume(run)["steps"] == STEPS


def test_a_run_with_a_missing_model_is_finished_without_training(uninterrupted, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "model")
    monkeypatch.setattr(loop_module.Trainer, "_step", None)  # no step is taken
    resume(run)
    assert weights(run) == weights(uninterrupted)


@pytest.mark.parametrize("step", [0, 4])
def test_a_run_initialized_from_a_model_resumes_to_the_same_bytes(uninterrupted, tmp_path, corpus_folder, step):
    """Including its newly initialized heads."""
    lone, first, again = tmp_path / "lone", tmp_path / "first", tmp_path / "again"
    pretrain("bert@tiny", corpus_folder, lone, steps=1, changes=[*SMALL, "remove=objective.next_sentence"])
    pretrain("bert@tiny", corpus_folder, first, steps=STEPS, init_from=lone, changes=SMALL)
    shutil.copytree(first, again)
    shutil.rmtree(again / "model")
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(again / f"checkpoints/step-{later}")
    if step:
        shutil.rmtree(lone)  # no longer needed
    resume(again)
    assert weights(again) == weights(first) != weights(uninterrupted)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_deleted_cache_is_rebuilt_identically(tmp_path, text_file, monkeypatch, kind):
    """The run's recipe has the actual vocabulary size; requesting that size trains the same tokenizer."""
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    pretrain("bert@tiny", text_file, run, steps=STEPS, changes=[
        *SMALL, f"tokenizer.kind={kind}", "tokenizer.vocab_size=3000"])
    expected = weights(run)
    shutil.rmtree(tmp_path / "cache")
    for step in range(3, STEPS + 1):
        shutil.rmtree(run / f"checkpoints/step-{step}")
    (run / "result.json").unlink()
    resume(run)
    assert weights(run) == expected


def test_temporary_files_of_a_killed_run_are_removed(uninterrupted, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()
    (run / ".model.0123abcd.tmp").mkdir()
    (run / ".model.0123abcd.old").mkdir()
    (run / ".run.json.0123abcd.tmp").touch()
    resume(run)
    assert not list(run.glob(".*"))


def test_resuming_with_other_annotations_is_refused(corpus_folder, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(corpus_folder, corpus)
    (tmp_path / "first.txt").write_text("the\nof\n")
    (tmp_path / "second.txt").write_text("and\nof the\n")
    annotate(corpus, phrases=tmp_path / "first.txt")
    pretrain("bert@tiny", corpus, tmp_path / "run", steps=4, changes=[*SMALL, "objective.masked_lm.unit=phrase"])
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed before its end
    annotate(corpus, phrases=tmp_path / "second.txt", overwrite=True)
    with pytest.raises(UserError, match="phrases of .* are not those that"):
        resume(tmp_path / "run")
    annotate(corpus, phrases=tmp_path / "first.txt", overwrite=True)
    assert resume(tmp_path / "run")["steps"] == 4
