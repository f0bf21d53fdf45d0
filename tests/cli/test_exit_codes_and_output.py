"""Common to all verbs: exit codes, one-line errors, JSON, fast help."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer
from commands import process

from stemma import recipe_loading
from stemma.cli import app, main
from stemma.cli.output import align_columns, emit, format_value, notes_printed
from stemma.errors import Interrupted


def run(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "stemma.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("arguments", "message"), [
    (["tre"], 'error: no verb "tre" in `stemma`. Did you mean "tree"?'),
    (["corpus", "inof"], 'error: no verb "inof" in `stemma corpus`. Did you mean "info"?'),
    (["corpus"], "error: `stemma corpus` needs a verb: "),
    (["tree", "--jsno"], 'error: no option "--jsno" of `stemma tree`. Did you mean "--json"?'),
    (["show"], "error: missing argument 'RECIPE'; `stemma show --help` shows how it is used."),
    (["show", "brt"], 'error: no recipe "brt". Did you mean "bert"? `stemma tree` lists all of them.'),
])
def test_user_errors_are_one_line_with_exit_code_2(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1
    assert captured.out == ""
    assert main([*arguments, "--json"]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error", "problems"}


def test_internal_errors_are_one_line_with_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(recipe_loading, "list_recipes", lambda: {}["no such\nthing"])
    assert main(["tree"]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("internal error: KeyError: ") and stderr.count("\n") == 1 and "--debug" in stderr


@pytest.mark.parametrize(("verb", "code"), [(["tree"], 1), (["show", "brt"], 2)])
def test_debug_shows_the_traceback(capsys, monkeypatch, verb, code):
    monkeypatch.setattr(recipe_loading, "list_recipes", lambda: 1 // 0)
    assert main([*verb, "--debug"]) == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert main(verb) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [Interrupted("state saved; `stemma resume run` continues."), KeyboardInterrupt()])
def test_an_interruption_is_one_line_with_exit_code_130(capsys, monkeypatch, error):
    def stop():
        raise error

    monkeypatch.setattr(recipe_loading, "list_recipes", stop)
    assert main(["tree"]) == 130
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and stderr.strip() == (str(error) or "interrupted.")


@pytest.mark.parametrize("arguments", [["show", "bert", "--json"], ["show", "bert"], ["--version"]])
def test_a_closed_pipe_is_no_error(arguments):
    command = [sys.executable, "-m", "stemma.cli", *arguments]
    with process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 0


def test_version_and_help_are_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("stemma")
    assert main([]) == 0
    assert "Example: stemma pretrain" in capsys.readouterr().out
    assert main(["diff", "--help"]) == 0
    assert "Example: stemma diff" in capsys.readouterr().out


def test_help_lists_the_verbs_by_panel(capsys):
    assert main(["--help"]) == 0
    parts = re.split(r"^(\w+):\n", capsys.readouterr().out, flags=re.M)[1:]
    listed = {title: re.findall(r"^  (\w+) ", part, flags=re.M) for title, part in zip(*[iter(parts)] * 2, strict=True)}
    del listed["Options"]
    assert list(listed) == ["Text", "Train", "Use", "Tasks", "Lab"]
    assert {"clean", "corpus"} <= set(listed["Text"]) and {"finetune", "evaluate"} <= set(listed["Tasks"])
    assert sorted(sum(listed.values(), [])) == sorted(typer.main.get_command(app).commands)


def test_help_takes_less_than_half_a_second():
    def seconds() -> float:
        before = os.times()  # CPU time, which does not depend on the load of the machine
        assert run("--help").returncode == 0
        return sum(os.times()[2:4]) - sum(before[2:4])

    assert min(seconds() for _ in range(3)) < 0.5


def test_the_command_line_imports_no_slow_library():
    slow = {"torch", "numpy", "pydantic", "tokenizers", "rich", "matplotlib", "transformers"}
    result = run(code=f"import sys, stemma.cli; print(*sorted({slow!r} & set(sys.modules)))")
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_emit_is_one_json_object_without_nan(capsys):
    emit({"loss": float("nan"), "best": [1.5, float("-inf")], "n": np.int64(3), "x": np.float32(0.5),
          "at": np.arange(2), "ok": True, "none": None, "text": "中"}, as_json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"loss": None, "best": [1.5, None], "n": 3, "x": 0.5, "at": [0, 1], "ok": True,
                               "none": None, "text": "中"}


def test_emit_prints_lines_or_calls_human(capsys):
    emit({"steps": 1200, "loss": 0.25}, as_json=False)
    assert capsys.readouterr().out == "steps  1,200\nloss   0.25\n"
    emit({"steps": 1}, as_json=False, human=lambda: print("done"))
    assert capsys.readouterr().out == "done\n"


def test_log_messages_are_notes_on_stderr(capsys):
    logger, root = logging.getLogger("stemma.text.train_tokenizer"), logging.getLogger("stemma")
    before = list(root.handlers), root.level, root.propagate
    with notes_printed():
        logger.warning("the text has fewer pieces: 100% \x1b[31m of %d")
        logger.info("training")
        logger.debug("not printed")
    captured = capsys.readouterr()
    assert captured.err == "note: the text has fewer pieces: 100% \\u001b[31m of %d\nnote: training\n"
    assert captured.out == "" and (root.handlers, root.level, root.propagate) == before


def test_values_and_columns_are_formatted():
    assert [format_value(value) for value in (30522, 1e-6, True, None, "gelu", [1, 2], {"layers": 6000})] == [
        "30,522", "1e-6", "true", "none", "gelu", "1, 2", "layers 6,000"]
    assert align_columns([("a", "bb", ""), ("ccc", "d", "e")]) == ["a     bb", "ccc   d    e"]


def verbs(command, path=()):
    inner = getattr(command, "commands", None)
    return [path] if inner is None else [verb for word, child in inner.items() for verb in verbs(child, (*path, word))]


@pytest.mark.parametrize("verb", verbs(typer.main.get_command(app)), ids=" ".join)
def test_help_has_readable_ranges_and_an_example(verb, capsys):
    assert main([*verb, "--help"]) == 0
    stdout = capsys.readouterr().out
    assert not re.search(r"[<>]=?x|x[<>]|range>|9223372036854775807", stdout)
    assert "Example: stemma" in stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["pretrain", "bert@tiny", "--corpus", "a", "--out", "b", "--seed", "-1"], "--seed must be 0 or more, not -1."),
    (["pretrain", "bert@tiny", "--corpus", "a", "--out", "b", "--seed", str(2**63)], "--seed must be below 2^63, not "),
    (["compare", "bert", "gpt2", "--corpus", "a", "--out", "b", "--seeds", "0"], "--seeds must be 1 or more, not 0."),
    (["cloze", "run", "file", "--limit", "0"], "--limit must be 1 or more, not 0."),
])
def test_numbers_out_of_range_are_refused(arguments, message, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
