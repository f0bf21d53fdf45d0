"""Parallel text: tokenizer, corpus and training from two files or from a table."""

from __future__ import annotations

import io
import json
import sys

import pytest
from commands import start, stemma
from conftest import small_text

from stemma.cli import main
from stemma.text.tokenizer import Tokenizer

TINY = ["network.width=32", "network.heads=2", "network.layers=1", "network.decoder.layers=1", "network.feedforward=64",
        "corpus.sequence_length=64", "training.batch_size=8", "training.warmup_steps=1", "tokenizer.vocab_size=400",
        "training.checkpoint_every=2", "training.threads=1"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with the two sides as files, and both as a table."""
    folder = tmp_path_factory.mktemp("parallel")
    source = [line for line in small_text().split("\n") if line]
    target = [" ".join(reversed(line.lower().rstrip(".").split())) for line in source]
    (folder / "s").write_text("\n".join(source) + "\n")
    (folder / "t").write_text("\n".join(target) + "\n")
    (folder / "both.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(source, target, strict=True)))
    return folder


def run(capsys, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_two_files_and_a_table_give_the_same_tokenizer_and_corpus(tmp_path, capsys, text):
    options = ["--kind", "bpe", "--vocab-size", 400]
    assert run(capsys, "tokenizer", "train", text / "s", text / "t", *options, "--out", tmp_path / "files")[0] == 0
    code, _, err = run(capsys, "tokenizer", "train", text / "both.tsv", "--pairs", *options, "--out",
                       tmp_path / "table")
    assert code == 0 and "first line is read as a pair" in err
    fingerprints = {Tokenizer.load(tmp_path / name).fingerprint for name in ("files", "table")}
    assert len(fingerprints) == 1

    build = ["--tokenizer", tmp_path / "files", "--out"]
    code, out, _ = run(capsys, "corpus", "build", text / "s", "--target", text / "t", *build, tmp_path / "a", "--json")
    pairs = len((text / "s").read_text().splitlines())
    result = json.loads(out)
    assert code == 0 and result["pairs"] is True and result["documents"] == pairs
    code, out, _ = run(capsys, "corpus", "build", text / "both.tsv", "--pairs", *build, tmp_path / "b")
    assert code == 0 and f"{pairs} pairs" in out
    infos = [json.loads(run(capsys, "corpus", "info", tmp_path / name, "--json")[1]) for name in ("a", "b")]
    assert infos[0]["fingerprint"] == infos[1]["fingerprint"] and all(info["pairs"] for info in infos)


@pytest.mark.parametrize(("words", "message"), [
    (["s", "--target", "t", "--documents", "line"], "error: --documents is for running text"),
    (["s", "--target", "t", "--columns", "a,b"], "error: --columns names the columns of a table"),
    (["s", "--empty", "skip"], "error: --empty is for parallel text; name --target FILE, or --pairs"),
    (["s", "--pairs"], "s holds no pairs: its first line has no tab"),
    (["s", "--target", "short"], "short 1; line by line"),
    (["s", "--target", "gappy"], "gappy, line 2"),
    (["both.tsv", "--pairs", "--columns", "en,de"], "no column en and no column de"),
])  # fmt: skip
def test_bad_input_is_an_error_message_and_leaves_no_files(tmp_path, capsys, text, tokenizer_folder, monkeypatch,
                                                           words, message):
    (text / "short").write_text("one line\n")
    (text / "gappy").write_text((text / "t").read_text().replace("\n", "\n\n", 1).rstrip("\n"))
    monkeypatch.chdir(text)
    code, out, err = run(capsys, "corpus", "build", *words, "--tokenizer", tokenizer_folder, "--out", tmp_path / "c",
                         "--json")
    assert code == 2 and message.removeprefix("error: ") in err and err.startswith("error: ")
    assert "error" in json.loads(out) and not list(tmp_path.iterdir())


def test_training_reads_pairs_and_stores_their_files_in_the_run(tmp_path, capsys, text):
    command = ["pretrain", "transformer@tiny", "--steps", 2, *TINY, "--json"]
    code, out, _ = run(capsys, *command, "--corpus", text / "s", "--target", text / "t", "--out", tmp_path / "files")
    files = json.loads(out)
    assert code == 0 and files["steps"] == 2 and files["loss"] > 0
    plan = json.loads((tmp_path / "files" / "run.json").read_text())
    assert plan["text"] == [str(text / "s")] and plan["target"] == [str(text / "t")]
    code, out, _ = run(capsys, *command, "--corpus", text / "both.tsv", "--out", tmp_path / "table")
    assert code == 0 and json.loads(out)["loss"] == files["loss"]


def test_the_target_side_is_read_from_stdin(tmp_path, capsys, text, monkeypatch):
    class Piped:
        buffer = io.BytesIO((text / "t").read_bytes())

    monkeypatch.setattr(sys, "stdin", Piped())
    run_folder = tmp_path / "run"
    code, _, err = run(capsys, "pretrain", "transformer@tiny", "--corpus", text / "s", "--target", "-", "--steps", 1,
                       *TINY, "--out", run_folder)
    assert code == 0, err
    assert json.loads((run_folder / "run.json").read_text())["target"] == [str(run_folder.resolve() / "target-1.txt")]
    assert (run_folder / "target-1.txt").read_bytes() == (text / "t").read_bytes()


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, text):
    command = ["pretrain", "transformer@tiny", "--corpus", text / "s", "--target", text / "t", "--steps", 8, *TINY]
    assert stemma(*command, "--out", tmp_path / "uninterrupted").code == 0
    killed = tmp_path / "killed"
    start(*command, "--out", killed).kill_when(lambda: (killed / "checkpoints" / "step-4").exists())
    assert stemma("resume", killed).code == 0
    expected, resumed = ((tmp_path / name / "model" / "model.safetensors").read_bytes()
                         for name in ("uninterrupted", "killed"))
    assert resumed == expected


@pytest.mark.parametrize(("words", "message"), [
    (["bert@tiny", "--corpus", "s", "--target", "t"], "bert@tiny reads running text, not pairs; leave --target out"),
    (["bert@tiny", "--corpus", "s", "--empty", "skip"], "--empty is for pairs, and bert@tiny reads running text"),
    (["transformer@tiny", "--corpus", "s"], "holds no pairs: its first line has no tab"),
    (["transformer@tiny", "--corpus", "both.tsv", "--field", "x"], "--field is for running text, and transformer@tiny"),
    (["transformer@tiny", "--corpus", "s", "--target", "nowhere"], "cannot read nowhere: no such file"),
])  # fmt: skip
def test_text_that_a_recipe_cannot_read_is_refused(tmp_path, capsys, text, monkeypatch, words, message):
    monkeypatch.chdir(text)
    code, _, err = run(capsys, "pretrain", *words, "--steps", 1, "--out", tmp_path / "run")
    assert code == 2 and message in err and not list(tmp_path.iterdir())


def test_a_corpus_with_target_files_is_refused(tmp_path, capsys, text, corpus_folder):
    code, _, err = run(capsys, "inspect", "transformer@tiny", "--corpus", corpus_folder, "--target", text / "t")
    assert code == 2 and "is a corpus and holds all that is to be read" in err


def test_pairs_that_are_too_long_are_left_out_with_a_note(tmp_path, capsys, text):
    lines = (text / "both.tsv").read_text().splitlines()
    lines[4] = "much " * 90 + "\tlonger"
    (tmp_path / "long.tsv").write_text("\n".join(lines))
    code, _, err = run(capsys, "pretrain", "transformer@tiny", "--corpus", tmp_path / "long.tsv", "--out",
                       tmp_path / "run", "--steps", 2, *TINY)
    assert code == 0
    assert 'are longer than corpus.sequence_length = 64 and are left out; the first is pair 5, "much much' in err
