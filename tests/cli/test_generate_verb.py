"""`generate`: completions, sampling options, prompts, errors."""

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


def run_json(capsys, *words: object) -> dict:
    capsys.readouterr()
    assert run("generate", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_every_completion(model, capsys):
    result = run_json(capsys, model, "The old", "Our", "--tokens", 6, "--completions", 2, "--seed", 3)
    assert result["prompts"] == ["The old", "Our"] and result["seed"] == 3
    assert [completion["prompt"] for completion in result["completions"]] == [0, 0, 1, 1]
    for completion in result["completions"]:
        assert set(completion) == {"prompt", "text", "tokens", "log_probability", "ended"}
        assert 1 <= len(completion["tokens"]) <= 6 and completion["log_probability"] < 0
        assert isinstance(completion["text"], str)
    uncached = run_json(capsys, model, "The old", "Our", "--tokens", 6, "--completions", 2, "--seed", 3, "--no-cache")
    expected = [completion["tokens"] for completion in result["completions"]]
    assert [completion["tokens"] for completion in uncached["completions"]] == expected


def test_the_random_seed_is_printed_and_reproduces_the_text(model, capsys):
    first = run_json(capsys, model, "The", "--tokens", 8)
    assert run_json(capsys, model, "The", "--tokens", 8, "--seed", first["seed"])["completions"] == first["completions"]
    assert run_json(capsys, model, "The", "--tokens", 8, "--greedy")["seed"] is None
    assert run("generate", model, "The", "--tokens", 2) == 0
    assert "note: sampled with --seed " in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--greedy"], ["--beams", 3, "--length-penalty", 1], ["--top-k", 5, "--seed", 1],
                                     ["--temperature", 0.7, "--top-p", 0.8, "--repetition-penalty", 1.2, "--seed", 1]])
def test_the_prompt_and_its_completion_are_printed(model, capsys, options):
    (expected,) = run_json(capsys, model, "The old", "--tokens", 6, *options)["completions"]
    assert run("generate", model, "The old", "--tokens", 6, *options) == 0
    assert capsys.readouterr().out == f"The old{expected['text']}\n"


def test_a_terminal_gets_the_text_token_by_token(model, capsys, monkeypatch):
    (expected,) = run_json(capsys, model, "The old", "--tokens", 9, "--seed", 2)["completions"]
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


def test_prompts_are_read_from_a_file_or_from_standard_input(model, capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("The old clerk\n\nOur neighbour\n")
    result = run_json(capsys, model, "--prompts", file, "--tokens", 4, "--greedy")
    assert result["prompts"] == ["The old clerk", "Our neighbour"] and len(result["completions"]) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    piped = run_json(capsys, model, "--prompts", "-", "--tokens", 4, "--greedy")
    assert_close(piped["completions"], result["completions"])
    assert run("generate", model, "--prompts", file, "--tokens", 4, "--greedy") == 0
    out = capsys.readouterr().out
    assert out.startswith("[1] The old clerk") and "\n[2] Our neighbour" in out


def test_without_a_prompt_a_new_text_is_generated(model, capsys):
    result = run_json(capsys, model, "--tokens", 5, "--greedy")
    assert result["prompts"] == [""] and result["completions"][0]["tokens"]


def test_a_stop_string_ends_the_text(model, capsys):
    options = ["The", "--tokens", 30, "--seed", 5, "--min-tokens", 30]
    full_text = run_json(capsys, model, *options)["completions"][0]["text"]
    stop = full_text[4:6]
    (completion,) = run_json(capsys, model, *options, "--stop", stop)["completions"]
    assert completion["text"] == full_text[:full_text.index(stop)] and completion["ended"] == "stop"


@pytest.mark.parametrize("words, message", [
    (["The", "--temperature", "0"], "use greedy"),
    (["The", "--beams", "2", "--top-p", "3", "--top-k", "0"], "top_p"),
    (["The " * 300], "tokens long and gpt2@tiny reads at most 32"),
    (["--prompts", "nowhere.txt"], "nowhere.txt"),
])
def test_bad_input_is_an_error_message(model, capsys, words, message):
    assert run("generate", model, *words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err and captured.out == ""
    assert run("generate", model, *words, "--json") == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_a_prompt_that_is_too_long_can_be_cropped(model, capsys):
    assert len(run_json(capsys, model, "The " * 300, "--crop", "--tokens", 4, "--greedy")["completions"]) == 1


def test_bad_options_are_reported_before_the_model_is_loaded(capsys):
    assert run("generate", "no-such-folder", "The", "--top-k", 0) == 2
    assert "top_k" in capsys.readouterr().err


def test_a_bidirectional_encoder_is_refused(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 1, *SMALL) == 0
    capsys.readouterr()
    assert run("generate", out, "the old clerk") == 2
    assert "BERT (bert@tiny) reads a text from both sides and cannot continue" in capsys.readouterr().err
