"""`generate` as a user meets it."""

from __future__ import annotations

import io
import json
import sys

import pytest
from closeness import assert_close

from stemma.cli import main
from stemma.cli.stdio import escape_control

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory, text_file):
    out = tmp_path_factory.mktemp("generate") / "run"
    assert run("pretrain", "gpt2@tiny", "--corpus", text_file, "--out", out, "--steps", 3, *SMALL,
               "tokenizer.vocab_size=400") == 0
    return out


def run(*words: object) -> int:
    return main([str(word) for word in words])


def asked(capsys, *words: object) -> dict:
    capsys.readouterr()
    assert run("generate", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_every_completion(model, capsys):
    found = asked(capsys, model, "The old", "Our", "--tokens", 6, "--completions", 2, "--seed", 3)
    assert found["prompts"] == ["The old", "Our"] and found["seed"] == 3
    assert [one["prompt"] for one in found["completions"]] == [0, 0, 1, 1]
    for one in found["completions"]:
        assert set(one) == {"prompt", "text", "tokens", "log_probability", "ended"}
        assert 1 <= len(one["tokens"]) <= 6 and one["log_probability"] < 0 and isinstance(one["text"], str)
    uncached = asked(capsys, model, "The old", "Our", "--tokens", 6, "--completions", 2, "--seed", 3, "--no-cache")
    assert [one["tokens"] for one in uncached["completions"]] == [one["tokens"] for one in found["completions"]]


def test_a_seed_that_was_drawn_is_told(model, capsys):
    first = asked(capsys, model, "The", "--tokens", 8)
    assert asked(capsys, model, "The", "--tokens", 8, "--seed", first["seed"])["completions"] == first["completions"]
    assert asked(capsys, model, "The", "--tokens", 8, "--greedy")["seed"] is None
    assert run("generate", model, "The", "--tokens", 2) == 0
    assert "note: drawn with --seed " in capsys.readouterr().err


@pytest.mark.parametrize("way", [["--greedy"], ["--beams", 3, "--length-penalty", 1], ["--top-k", 5, "--seed", 1],
                                 ["--temperature", 0.7, "--top-p", 0.8, "--repetition-penalty", 1.2, "--seed", 1]])
def test_people_read_the_prompt_and_what_follows(model, capsys, way):
    (expected,) = asked(capsys, model, "The old", "--tokens", 6, *way)["completions"]
    assert run("generate", model, "The old", "--tokens", 6, *way) == 0
    assert capsys.readouterr().out == f"The old{expected['text']}\n"


def test_a_terminal_sees_it_grow(model, capsys, monkeypatch):
    (expected,) = asked(capsys, model, "The old", "--tokens", 9, "--seed", 2)["completions"]
    pieces: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run("generate", model, "The old", "--tokens", 9, "--seed", 2) == 0
    assert "".join(pieces) == escape_control(f"The old{expected['text']}\n") and len([piece for piece in pieces
                                                                                      if piece]) > 4


def test_prompts_come_from_a_file_or_from_standard_input(model, capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("The old clerk\n\nOur neighbour\n")
    found = asked(capsys, model, "--prompts", file, "--tokens", 4, "--greedy")
    assert found["prompts"] == ["The old clerk", "Our neighbour"] and len(found["completions"]) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    piped = asked(capsys, model, "--prompts", "-", "--tokens", 4, "--greedy")
    assert_close(piped["completions"], found["completions"])
    assert run("generate", model, "--prompts", file, "--tokens", 4, "--greedy") == 0
    out = capsys.readouterr().out
    assert out.startswith("[1] The old clerk") and "\n[2] Our neighbour" in out


def test_no_prompt_begins_a_text(model, capsys):
    found = asked(capsys, model, "--tokens", 5, "--greedy")
    assert found["prompts"] == [""] and found["completions"][0]["tokens"]


def test_stop_strings(model, capsys):
    whole = asked(capsys, model, "The", "--tokens", 30, "--seed", 5, "--min-tokens", 30)["completions"][0]["text"]
    stop = whole[4:6]
    cut = asked(capsys, model, "The", "--tokens", 30, "--seed", 5, "--min-tokens", 30, "--stop", stop)
    assert cut["completions"][0]["text"] == whole[:whole.index(stop)] and cut["completions"][0]["ended"] == "stop"


@pytest.mark.parametrize("words, said", [
    (["The", "--temperature", "0"], "use greedy"),
    (["The", "--beams", "2", "--top-p", "3", "--top-k", "0"], "top_p"),
    (["The " * 300], "tokens long and gpt2@tiny reads at most 32"),
    (["--prompts", "nowhere.txt"], "nowhere.txt"),
])
def test_what_is_wrong_is_said(model, capsys, words, said):
    assert run("generate", model, *words) == 2
    problem = capsys.readouterr()
    assert problem.err.startswith("error: ") and said in problem.err and problem.out == ""
    assert run("generate", model, *words, "--json") == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_a_prompt_that_is_too_long_can_be_cropped(model, capsys):
    assert len(asked(capsys, model, "The " * 300, "--crop", "--tokens", 4, "--greedy")["completions"]) == 1


def test_bad_options_are_told_before_the_model_is_looked_for(capsys):
    assert run("generate", "no-such-folder", "The", "--top-k", 0) == 2
    assert "top_k" in capsys.readouterr().err


def test_a_model_of_another_kind_is_told_so(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 1, *SMALL) == 0
    capsys.readouterr()
    assert run("generate", out, "the old clerk") == 2
    assert "BERT (bert@tiny) reads a text from both sides and cannot continue" in capsys.readouterr().err
