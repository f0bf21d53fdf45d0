"""Standard input and output, handles, signals and names: a sentence for each, and no control character raw."""

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
    """`stemma` as a shell starts it."""
    whole = command.replace("stemma", f"exec {sys.executable} -m stemma")
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, cwd=folder, check=False)


# ---- streams that are closed or full ----

@pytest.mark.parametrize(("command", "said"), [
    ("stemma tree >&-", "standard output is closed"),
    ("stemma tree --json >&-", "standard output is closed"),
    ("stemma tree > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma tree --json > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma tokenizer info tok > /dev/full", "cannot write to standard output: no space left on device"),
    ("stemma corpus build - --tokenizer tok --out made <&-", "standard input is closed"),
    ("stemma pretrain bert@tiny --corpus - --out made --steps 1 <&-", "standard input is closed"),
])
def test_streams_that_cannot_be_used(tmp_path, tokenizer_folder, command, said):
    shutil.copytree(tokenizer_folder, tmp_path / "tok")
    told = shell(command, tmp_path)
    assert told.returncode == 2 and told.stderr.startswith("error: ") and said in told.stderr, told
    assert told.stderr.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["tok"]


@pytest.mark.parametrize(("command", "code"), [("stemma tree --json 2>&-", 0), ("stemma show nobody 2>&-", 2),
                                               ("stemma show nobody 2> /dev/full", 2), ("stemma tree --json 0<&-", 0)])
def test_without_a_stream_for_errors_the_exit_code_says_it(tmp_path, command, code):
    told = shell(command, tmp_path)
    assert told.returncode == code and told.stderr == ""
    assert json.loads(told.stdout) if code == 0 else told.stdout == "", "no note strays into the result"


def inside(lines: str, streams: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a verb would do that was started with such streams."""
    script = "from stemma.cli import output, stdio\nimport logging, os\n" \
             f"with stdio.safe_streams():\n    {lines}"
    return subprocess.run(["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, script], capture_output=True,
                          text=True, cwd=folder, check=False)


def test_a_note_that_cannot_be_written_does_not_end_the_command(tmp_path):
    told = inside("output.Notes().emit(logging.makeLogRecord({'msg': 'worth knowing'})); print('done')", "2> /dev/full",
                  tmp_path)
    assert (told.returncode, told.stdout) == (0, "done\n")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-", ">&-"])
def test_no_file_takes_the_number_of_a_closed_stream(tmp_path, closed):
    """Whatever prints there, a library among them, would print into the file."""
    told = inside("os.write(file := os.open('made', os.O_CREAT | os.O_WRONLY), str(file).encode())", closed, tmp_path)
    assert told.returncode == 0 and int((tmp_path / "made").read_text()) > 2, told


# ---- names and handles ----

LONG = "n" * 300


@pytest.mark.parametrize("words", [
    ["fill", LONG, "a [MASK]"], ["pretrain", "bert@tiny", "--corpus", LONG, "--steps", "1", "--out", "run"],
    ["pretrain", LONG, "--corpus", "text.txt", "--out", "run"], ["show", LONG + ".toml"], ["resume", LONG],
    ["predict", LONG, "text.txt"], ["corpus", "info", LONG], ["tokenizer", "info", LONG],
    ["corpus", "build", "text.txt", "--tokenizer", LONG, "--out", "made"],
    ["compare", "bert@tiny", "roberta@tiny", "--corpus", LONG, "--out", "lab", "--tokens", "1000"],
    ["compare", "bert@tiny", "roberta@tiny", "--corpus", "text.txt", "--out", LONG, "--tokens", "1000"],
], ids=lambda words: " ".join(word[:12] for word in words))
def test_a_name_of_300_characters(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a text\n")
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ") and told.err.count("\n") == 1 and "nnn" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("verb", ["corpus", "pretrain", "embed"])
def test_few_open_files(tmp_path, monkeypatch, capsys, text_file, tokenizer_folder, verb):
    """A limit just above what is open already; afterwards the same command works, as the sentence says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path.with_name(tmp_path.name + "-cache")))
    save_random(tmp_path / "model", tokenizer_folder)
    command = {"corpus": ["corpus", "build", str(text_file), "--tokenizer", str(tokenizer_folder), "--workers", "1"],
               "pretrain": ["pretrain", "bert@tiny", *SMALL, "--corpus", str(text_file), "--steps", "1"],
               "embed": ["embed", "model", str(text_file)]}[verb]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:  # so many handles are free below the limit, whichever others are in use
        *_, last = (opened.enter_context((tmp_path / "model/config.json").open())
                    for _ in range(1 if verb == "embed" else 6))
        limit = last.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        code = main([*command, "--out", "made"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    told = capsys.readouterr().err
    assert code == 2 and "too many" in told.lower() and "ulimit -n" in told, told
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    if verb != "pretrain":
        assert main([*command, "--out", "made"]) == 0


# ---- the cache ----

@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME", "STEMMA_CACHE"])
def test_a_home_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch, capsys, text_file, variable):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "STEMMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/proc/home")  # not even root makes a folder there
    assert main(["pretrain", "bert@tiny", *SMALL, "--corpus", str(text_file), "--steps", "1", "--out", "run"]) == 2
    told = capsys.readouterr().err
    assert "cannot write the cache /proc/home" in told and "set STEMMA_CACHE to a folder that can be written" in told
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_is_there_and_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a disk that is mounted so; root may do the rest
    with pytest.raises(Exception, match="it is read-only.*STEMMA_CACHE"):
        create_cache_folder(tmp_path)


# ---- control characters ----

@pytest.fixture(scope="session")
def hostile(tmp_path_factory, tokenizer_folder) -> Path:
    """Labels, tokens and a name that a terminal would obey."""
    folder = tmp_path_factory.mktemp("hostile")
    save_random(folder / "judge", tokenizer_folder, labels=LABELS)
    save_random(folder / "model", tokenizer_folder)
    (folder / "model/checksums.json").unlink()
    file = folder / "model/tokenizer.json"
    content = json.loads(file.read_text())
    special = {token["content"] for token in content["added_tokens"]}
    content["model"]["vocab"] = {token if token in special else f"{token}\x1b[2J\x9b": number
                                 for token, number in content["model"]["vocab"].items()}
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
def test_no_control_character_is_printed_raw(hostile, monkeypatch, capsys, tmp_path, words):
    shutil.copytree(hostile, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert main(words) in (0, 2)
    told = capsys.readouterr()
    assert not RAW.search(told.out + told.err), (told.out, told.err)
    assert "\\u001b" in told.out + told.err


def test_json_is_exact(hostile, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(hostile)
    assert main(["evaluate", "judge", "--data", "rows.jsonl", "--out", str(tmp_path / "judged"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["confusion"]["labels"] == list(LABELS)
    assert main(["fill", "model\x1b", "\x9b[MASK]", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "there is no model at model\x1b."


def test_our_own_colours_stay_on_a_terminal(monkeypatch):
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

def test_a_closed_terminal_saves_as_a_request_to_end_does(tmp_path, corpus_folder):
    run = tmp_path / "run"
    running = start("pretrain", "bert@tiny", *SMALL, "--corpus", corpus_folder, "--out", run, "--steps", "2000",
                    "training.checkpoint_every=100000", "training.log_every=1", "--json")
    log = run / "log.jsonl"
    stopped = running.kill_when(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 2, signal.SIGHUP)
    assert stopped.code == 130 and set(stopped.json) == {"interrupted"}
    assert "stopped at step" in stopped.err and len(list((run / "checkpoints").iterdir())) == 1


def test_a_closed_terminal_leaves_nothing_half_written(tmp_path, text_file, tokenizer_folder):
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text() * 40)
    place = tmp_path / "place"
    place.mkdir()
    running = start("corpus", "build", text, "--tokenizer", tokenizer_folder, "--out", place / "made", "--workers", "1")
    stopped = running.kill_when(lambda: list(place.glob(".made.*.tmp/*")), signal.SIGHUP)
    assert stopped.code == 130 and list(place.iterdir()) == []


def test_nohup_is_respected():
    """Who ignores SIGHUP wants the run to outlive the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signal_handlers(STOP_SIGNALS, lambda number, frame: None) as taken:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert set(taken) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_run_whose_terminal_vanishes_is_saved(tmp_path, corpus_folder):
    """The bar can no longer be drawn, which is no reason to lose the checkpoint."""
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
