"""`pretrain`, `resume` and `inspect`: JSON and printed output, text sources, diverging runs, seeds."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from stemma.cli import main

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1"]
KEYS = {"run", "recipe", "steps", "tokens", "loss", "validation_loss", "unigram_loss", "tokens_per_second", "seconds"}


def run(*words: object) -> int:
    return main([str(word) for word in words])


def json_output(capsys) -> dict:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_pretrain_and_resume_print_one_json_object(tmp_path, capsys, corpus_folder):
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / "run", "--steps", 2, *SMALL,
               "--json") == 0
    result = json_output(capsys)
    assert result.keys() >= KEYS and result["steps"] == 2 and all(result[key] is not None for key in KEYS)
    assert run("resume", tmp_path / "run", "--json") == 0
    assert json_output(capsys) == result
    assert run("resume", tmp_path / "run", "--processes", 2) == 2  # a single run has no cells
    assert "is for a lab" in capsys.readouterr().err


def test_the_printed_result_has_the_losses_and_the_next_command(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 2, *SMALL) == 0
    captured = capsys.readouterr()
    assert "bert@tiny · 2 steps" in captured.out and "held-out loss" in captured.out
    assert f"`stemma fill {out}" in captured.out
    assert "\r" not in captured.err and "\x1b" not in captured.err  # no progress bar without a terminal


def test_a_corpus_of_one_sentence_has_no_validation_loss(tmp_path, capsys, tokenizer_folder):
    (tmp_path / "one.txt").write_text("the old clerk reads a letter by the window and forgets the margin notes\n")
    assert run("corpus", "build", tmp_path / "one.txt", "--tokenizer", tokenizer_folder, "--out", tmp_path / "c") == 0
    capsys.readouterr()
    command = ["pretrain", "bert@tiny", "--corpus", tmp_path / "c", "--steps", 1, *SMALL]
    assert run(*command, "--out", tmp_path / "run", "--json") == 0
    result = json_output(capsys)
    assert result.keys() >= KEYS and result["validation_loss"] is None and result["loss"] > 0
    assert run(*command, "--out", tmp_path / "printed") == 0
    assert "held-out" not in capsys.readouterr().out


def test_text_is_read_from_several_paths_and_from_stdin(tmp_path, capsys, text_file, monkeypatch):
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(text_file, folder / "a.txt")
    (folder / "b.jsonl").write_text(json.dumps({"body": "One sentence here. Another one there."}) + "\n")
    assert run("pretrain", "bert@tiny", "--corpus", folder / "*.jsonl", "--corpus", folder / "a.txt", "--field", "body",
               "--out", tmp_path / "one", "--steps", 1, *SMALL, "--json") == 0
    assert json_output(capsys)["steps"] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    assert run("pretrain", "bert@tiny", "--corpus", "-", "--out", tmp_path / "two", "--steps", 1, *SMALL) == 0
    assert (tmp_path / "two/text-1.txt").read_bytes() == text_file.read_bytes()


def test_a_diverging_run_stops_with_an_error_message(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    command = ["pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 50, *SMALL,
               "training.learning_rate=1e30", "training.clip_norm=1e30", "training.optimizer.weight_decay=0.0"]
    assert run(*command) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: the loss is not a number at step ") and "training.learning_rate" in message
    step = int(message.split(" at step ")[1].split(";")[0]) - 1
    assert (out / f"checkpoints/step-{step}").is_dir() and f"state of step {step} saved in {out}" in message
    assert run("resume", out, "--json") == 2  # it diverges again
    assert set(json_output(capsys)) == {"error", "problems"}


def test_the_seed_determines_the_loss(tmp_path, capsys, corpus_folder):
    losses = []
    for index, seed in enumerate((1, 1, 2)):
        assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / str(index), "--steps", 2,
                   *SMALL, "--seed", seed, "--json") == 0
        losses.append(json_output(capsys)["loss"])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("source", ["corpus", "text", "stdin"])
def test_inspect_reads_a_corpus_a_file_or_stdin(tmp_path, capsys, corpus_folder, text_file, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    corpus = {"corpus": corpus_folder, "text": text_file, "stdin": "-"}[source]
    assert run("inspect", "bert@tiny", "--corpus", corpus, "--examples", 3, "corpus.sequence_length=32", "--json") == 0
    examples = json_output(capsys)["examples"]
    assert len(examples) == 3
    for example in examples:
        assert example["input"][0] == "[CLS]" and example["targets"] and set(example["labels"]) == {"next_sentence"}
        masked = [target for target in example["targets"] if example["input"][target["position"]] == "[MASK]"]
        assert all(example["original"][target["position"]] == target["token"] for target in masked)
