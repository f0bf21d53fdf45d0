"""Every command in the documentation is run, in order, in an empty folder with a text of one's own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import stemma
from conftest import small_text

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORTER = [(re.compile(r"--minutes \S+"), "--steps 4"), (re.compile(r"--steps [\d_]{2,}"), "--steps 4")]
LONG = ("stemma quickstart",)  # has tests of its own
SLOW = ("seq2seq.md", "encoders.md", "recurrence.md")  # a minute each, and what they show has tests of its own


def blocks(page: Path) -> list[tuple[str, str]]:
    """The (language, content) of each fenced block that is meant to be typed."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW))
                                  for page in PAGES])
def test_the_commands_of_the_page_work(page: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(small_text())
    (tmp_path / "held-out.txt").write_text(small_text(seed=1))
    write_pairs(tmp_path)
    write_beside(tmp_path)
    for name, content in re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, content in blocks(page):
        if language == "python":
            run([sys.executable, "-c", content], tmp_path, environment)
            continue
        for line in content.splitlines():
            command = line.split("#")[0].strip()
            if command.startswith("make "):
                assert {word for word in command.split()[1:] if "=" not in word} <= set(targets), line
            elif command.startswith("stemma ") and not command.startswith(LONG):
                for pattern, replacement in SHORTER:
                    command = pattern.sub(replacement, command)
                done = stemma(*shlex.split(command)[1:], folder=tmp_path)
                assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
            elif command and not command.startswith(LONG):
                pytest.fail(f"{page.name} shows a command that no test knows how to run: {line}")


def write_pairs(folder: Path) -> None:
    """A table of pairs, and the same as files that go together line by line; the other language is longer words."""
    english = [line for line in small_text().splitlines() if line.strip()][:120]
    german = [" ".join(word + "en" for word in line.split()) for line in english]
    (folder / "pairs.tsv").write_text("\n".join(["source\ttarget", *map("\t".join, zip(english, german, strict=True))]))
    for name in ("train", "test"):
        (folder / f"{name}.en").write_text("\n".join(english if name == "train" else english[:5]))
        (folder / f"{name}.de").write_text("\n".join(german if name == "train" else german[:5]))


def write_beside(folder: Path) -> None:
    """What some tasks read besides running text: a list of names, dialogues, a search engine's log, and labels."""
    lines = [line for line in small_text().splitlines() if line.strip()]
    (folder / "names.txt").write_text("\n".join(dict.fromkeys(line.split()[0].strip(".,;") for line in lines[:9])))
    talks = [{"turns": [{"role": ("user", "system")[turn % 2], "text": line} for turn, line in enumerate(three)]}
             for three in zip(lines[0::3], lines[1::3], lines[2::3], strict=False)]
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, talks)))
    rows = [f"{line.split()[0]}\t{line}\t{number % 3}" for number, line in enumerate(lines[:60])]
    reviews = [f"{line}\t{'late' if line.split()[2] > 'n' else 'early'}" for line in lines[:80]]
    for name, some in (("reviews", reviews[:60]), ("held-out", reviews[60:])):
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *some]))
    (folder / "clicks.tsv").write_text("\n".join(["query\ttitle\tlabel", *rows]))


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def typed(page: Path) -> list[list[str]]:
    """The words of every command of ours that the page shows, in order."""
    lines = [line for language, content in blocks(page) if language == "sh" for line in content.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("stemma ")]


def test_the_readme_measures_on_text_that_was_not_trained_on():
    read = {}
    for verb, *words in typed(ROOT / "README.md"):
        if "--out" in words and ("--corpus" in words or "--train" in words):
            text = words.index("--corpus" if "--corpus" in words else "--train")
            read[words[words.index("--out") + 1]] = words[text + 1]
        if verb == "perplexity":
            assert read[words[0]] != words[1]
        if verb == "evaluate":
            assert read[words[0]] != words[words.index("--data") + 1]
    assert {"run", "writer", "tuned"} <= set(read)


def test_the_readme_resumes_to_the_byte_only_what_is_counted_in_steps_or_tokens():
    made: dict[str, list[str]] = {}
    for verb, *words in typed(ROOT / "README.md"):
        if verb == "pretrain":
            made[words[words.index("--out") + 1]] = words
        elif verb == "resume":
            assert "--minutes" not in made[words[0]]
            return
    pytest.fail("the README shows no resume")


def test_the_readme_names_no_verb_that_is_missing():
    introduction = (ROOT / "README.md").read_text().partition("\n## ")[0]
    there = {name for line in stemma("--help").out.splitlines() if (name := line.split()[0] if line.split() else "")}
    for verb, promise in (("distill", "compressed"), ("export", "compressed"), ("serve", "served")):
        assert verb in there or promise not in introduction
