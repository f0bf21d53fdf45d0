"""Closed or full streams, long names, few file descriptors and signals give errors; control characters are escaped."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from commands import start
from random_models import save_random

from stemma.cli import main
from stemma.cli.output import console
from stemma.cli.stdio import escape_control
from stemma.training.corpus_cache import create_cache_folder
from stemma.training.signals import STOP_SIGNALS, signal_handlers

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LABELS = ("no\x1b[31m", "yes\x1b]0;title\x07", "\x9b2Jperhaps", "back\rspace\x08\x7f")
SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=5"]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in bash, with `stemma` as a separate process."""
    command_line = command.replace("stemma", f"exec {sys.executable} -m stemma")
    return subprocess.run(["bash", "-c", command_line], capture_output=True, text=True, cwd=folder, check=False)


# ---- streams that are closed or full ----

@pytest.mark.parametrize(("command", "message"), [
    ("stemma tree >&-", "standard output is closed"),
    ("stemma tree --json >&-", "standard output is closed"),
    ("stemma tree > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma tree --json > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma tokenizer info tok > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma corpus build - --tokenizer tok --out made <&-", "standard input is closed"),
    ("stemma pretrain bert@tiny --corpus - --out made --steps 1 <&-", "standard input is closed"),
])
def test_closed_or_full_streams_give_an_error(tmp_path, tokenizer_folder, command, message):
    shutil.copytree(tokenizer_folder, tmp_path / "tok")
    completed = shell(command, tmp_path)
    assert completed.returncode == 2, completed
    assert completed.stderr.startswith("error: ") and message in completed.stderr, completed
    assert completed.stderr.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["tok"]


@pytest.mark.parametrize(("command", "code"), [("stemma tree --json 2>&-", 0), ("stemma show nobody 2>&-", 2),
                                               ("stemma show nobody 2> /dev/full", 2), ("stemma tree --json 0<&-", 0)])
def test_the_exit_code_is_right_without_stderr(tmp_path, command, code):
    completed = shell(command, tmp_path)
    assert completed.returncode == code and completed.stderr == ""
    assert json.loads(completed.stdout) if code == 0 else completed.stdout == "", "stdout must hold only the result"


def run_with_streams(lines: str, streams: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python lines as a command would that was started with these stream redirections."""
    script = "from stemma.cli import output, stdio\nimport logging, os\n" \
             f"with stdio.safe_streams():\n    {lines}"
    return subprocess.run(["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, script], capture_output=True,
                          text=True, cwd=folder, check=False)


def test_a_note_that_cannot_be_written_does_not_stop_the_command(tmp_path):
    program = "output.Notes().emit(logging.makeLogRecord({'msg': 'worth knowing'})); print('done')"
    completed = run_with_streams(program, "2> /dev/full", tmp_path)
    assert (completed.returncode, completed.stdout) == (0, "done\n")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-", ">&-"])
def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path, closed):
    """Otherwise whatever a library prints to that descriptor would go into the file."""
    program = "os.write(file := os.open('made', os.O_CREAT | os.O_WRONLY), str(file).encode())"
    completed = run_with_streams(program, closed, tmp_path)
    assert completed.returncode == 0 and int((tmp_path / "made").read_text()) > 2, completed


# ---- long names and few file descriptors ----

LONG_NAME = "n" * 300


@pytest.mark.parametrize("words", [
    ["fill", LONG_NAME, "a [MASK]"], ["pretrain", "bert@tiny", "--corpus", LONG_NAME, "--steps", "1", "--out", "run"],
    ["pretrain", LONG_NAME, "--corpus", "text.txt", "--out", "run"], ["show", LONG_NAME + ".toml"],
    ["resume", LONG_NAME],
    ["predict", LONG_NAME, "text.txt"], ["corpus", "info", LONG_NAME], ["tokenizer", "info", LONG_NAME],
    ["corpus", "build", "text.txt", "--tokenizer", LONG_NAME, "--out", "made"],
    ["compare", "bert@tiny", "roberta@tiny", "--corpus", LONG_NAME, "--out", "lab", "--tokens", "1000"],
    ["compare", "bert@tiny", "roberta@tiny", "--corpus", "text.txt", "--out", LONG_NAME, "--tokens", "1000"],
], ids=lambda words: " ".join(word[:12] for word in words))
def test_a_name_of_300_characters_gives_an_error(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a text\n")
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and "nnn" in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("verb", ["corpus", "pretrain", "embed"])
def test_too_many_open_files_give_an_error(tmp_path, monkeypatch, capsys, text_file, tokenizer_folder, verb):
    """The limit is just above the descriptors in use. With the old limit the same command works, as the error says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path.with_name(tmp_path.name + "-cache")))
    save_random(tmp_path / "model", tokenizer_folder)
    command = {"corpus": ["corpus", "build", str(text_file), "--tokenizer", str(tokenizer_folder), "--workers", "1"],
               "pretrain": ["pretrain", "bert@tiny", *SMALL, "--corpus", str(text_file), "--steps", "1"],
               "embed": ["embed", "model", str(text_file)]}[verb]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:  # this many descriptors are free below the limit
        *_, last = (opened.enter_context((tmp_path / "model/config.json").open())
                    for _ in range(1 if verb == "embed" else 6))
        limit = last.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        code = main([*command, "--out", "made"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    stderr = capsys.readouterr().err
    assert code == 2 and "too many" in stderr.lower() and "ulimit -n" in stderr, stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    if verb != "pretrain":
        assert main([*command, "--out", "made"]) == 0


# ---- the cache ----

@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME", "STEMMA_CACHE"])
def test_the_error_for_an_unwritable_cache_names_the_variable(tmp_path, monkeypatch, capsys, text_file, variable):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "STEMMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/proc/home")  # not even root can create a folder there
    assert main(["pretrain", "bert@tiny", *SMALL, "--corpus", str(text_file), "--steps", "1", "--out", "run"]) == 2
    stderr = capsys.readouterr().err
    assert "cannot write the cache /proc/home" in stderr
    assert "set STEMMA_CACHE to a folder that can be written" in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_cache_gives_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so this pretends
    with pytest.raises(Exception, match="it is read-only.*STEMMA_CACHE"):
        create_cache_folder(tmp_path)


# ---- control characters ----

@pytest.fixture(scope="session")
def files_with_control_characters(tmp_path_factory, tokenizer_folder) -> Path:
    """A model and data with terminal escape sequences in labels, tokens and a file name."""
    folder = tmp_path_factory.mktemp("hostile")
    save_random(folder / "judge", tokenizer_folder, labels=LABELS)
    save_random(folder / "model", tokenizer_folder)
    (folder / "model/checksums.json").unlink()
    file = folder / "model/tokenizer.json"
    content = json.loads(file.read_text())
    special = {token["content"] for token in content["added_tokens"]}
    content["model"]["vocab"] = {token if token in special else f"{token}\x1b[2J\x9b": token_id
                                 for token, token_id in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content))
    rows = [json.dumps({"text": "the old clerk \x1b[2J", "label": label}) for label in LABELS]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "bad\x1b[31m.txt").write_bytes(b"\xff\xff")
    return folder


@pytest.mark.parametrize("words", [
    ["evaluate", "judge", "--data", "rows.jsonl", "--out", "judged"],
    ["predict", "judge", "rows.jsonl"], ["predict", "judge", "rows.jsonl", "--json"],
    ["fill", "model", "[MASK]"], ["fill", "model", "[MASK] [MASK]"], ["fill", "model\x1b[31m", "[MASK]"],
    ["tokenizer", "info", "gone\x1b[31m"], ["show", "bert\x1b[31m"], ["\x1b[31m"],
    ["corpus", "build", "bad\x1b[31m.txt", "--tokenizer", "model", "--out", "made"],
    ["pretrain", "bert@tiny", "--corpus", "x", "--out", "run", "network.\x1b[31m=3"],
], ids=lambda words: escape_control(" ".join(words[:3])))
def test_control_characters_are_printed_escaped(files_with_control_characters, monkeypatch, capsys, tmp_path, words):
    shutil.copytree(files_with_control_characters, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert main(words) in (0, 2)
    captured = capsys.readouterr()
    assert not RAW.search(captured.out + captured.err), (captured.out, captured.err)
    assert "\\u001b" in captured.out + captured.err


def test_json_output_keeps_control_characters(files_with_control_characters, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(files_with_control_characters)
    assert main(["evaluate", "judge", "--data", "rows.jsonl", "--out", str(tmp_path / "judged"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["confusion"]["labels"] == list(LABELS)
    assert main(["fill", "model\x1b", "\x9b[MASK]", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "there is no model at model\x1b."


def test_stemmas_own_colours_stay_on_a_terminal(monkeypatch):
    from rich.text import Text

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    console().print(Text("label\x1b[2J", style="bold"))
    assert screen.getvalue() == "\x1b[1mlabel\\u001b[2J\x1b[0m\n"


# ---- signals ----

def test_sighup_saves_a_checkpoint_and_exits_with_130(tmp_path, corpus_folder):
    run = tmp_path / "run"
    running = start("pretrain", "bert@tiny", *SMALL, "--corpus", corpus_folder, "--out", run, "--steps", "2000",
                    "training.checkpoint_every=100000", "training.log_every=1", "--json")
    log = run / "log.jsonl"
    stopped = running.kill_when(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 2, signal.SIGHUP)
    assert stopped.code == 130 and set(stopped.json) == {"interrupted"}
    assert "stopped at step" in stopped.err and len(list((run / "checkpoints").iterdir())) == 1


def test_sighup_leaves_no_partial_corpus(tmp_path, text_file, tokenizer_folder):
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text() * 40)
    parent = tmp_path / "parent"
    parent.mkdir()
    running = start("corpus", "build", text, "--tokenizer", tokenizer_folder, "--out", parent / "made", "--workers", 1)
    stopped = running.kill_when(lambda: list(parent.glob(".made.*.tmp/*")), signal.SIGHUP)
    assert stopped.code == 130 and list(parent.iterdir()) == []


def test_an_ignored_sighup_stays_ignored():
    """nohup ignores SIGHUP so that the run outlives the terminal."""
    old_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signal_handlers(STOP_SIGNALS, lambda number, frame: None) as handled:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert set(handled) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, old_handler)


@pytest.mark.slow
def test_a_run_whose_terminal_closes_is_saved(tmp_path, corpus_folder):
    """The progress bar can no longer be drawn, but the checkpoint must still be written."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "stemma", "pretrain", "bert@tiny", *SMALL, "--corpus", corpus_folder, "--out", run,
               "--steps", "3000", "training.checkpoint_every=100000", "training.log_every=1"]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [str(word) for word in command])
    log, deadline = run / "log.jsonl", time.monotonic() + 300
    os.set_blocking(terminal, False)
    while not log.is_file() or log.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < deadline
        with suppress(OSError):
            os.read(terminal, 65536)
        time.sleep(0.01)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert len(list((run / "checkpoints").iterdir())) == 1 and not (run / "model").exists()
