"""Shell completion: the completions that typer prints, and the scripts of the shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from stemma import recipe_loading
from stemma.cli import main
from stemma.cli.completion import SCRIPTS, recipe_names

CODE = "import sys; from stemma.cli import main; code = main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"


def completions(*words: str, **environment: str) -> tuple[list[str], str]:
    """The completions of the last word, and stderr with the imported modules."""
    request = {"_STEMMA_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(["stemma", *words]),
               "COMP_CWORD": str(len(words))}
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True,
                            env={**os.environ, **request, **environment})
    return result.stdout.split(), result.stderr


@pytest.mark.parametrize(("words", "expected", "unexpected"), [
    (["pre"], ["pretrain", "predict"], ["prompt", "tree"]),
    (["corpus", ""], ["build", "info"], ["train"]),
    (["finetune", "c"], ["classify"], ["tag"]),
    (["pretrain", "bert", "--ov"], ["--overwrite"], ["--out"]),
    (["pretrain", "be"], ["bert", "bert@tiny", "bert-wwm@tiny"], ["albert"]),
    (["pretrain", "bert@t"], ["bert@tiny"], ["bert", "bert@base"]),
    (["compare", "bert@tiny", "robe"], ["roberta", "roberta@tiny"], []),
    (["ablate", "robe"], ["roberta"], []),
    (["diff", "bert", "robe"], ["roberta"], []),
    (["inspect", "robe"], ["roberta"], []),
    (["tokenizer", "train", "--for", "robe"], ["roberta"], []),
])
def test_verbs_options_and_recipes_are_completed(words, expected, unexpected):
    offered, modules = completions(*words)
    assert set(expected) <= set(offered) and not set(unexpected) & set(offered)
    assert not {"torch", "numpy", "tokenizers", "stemma.schema"} & set(modules.split()), "too slow for TAB"


@pytest.mark.parametrize("words", [["nosuch", "x"], ["finetune", "nosuch", "x"], ["show", "brt"]])
def test_no_completions_is_no_error(words):
    offered, stderr = completions(*words)
    assert offered == [] and "error:" not in stderr


def test_completion_takes_less_than_half_a_second():
    def seconds() -> float:
        before = os.times()  # CPU time, which does not depend on the load of the machine
        completions("pretrain", "be")
        return sum(os.times()[2:4]) - sum(before[2:4])

    assert min(seconds() for _ in range(3)) < 0.5


def test_recipe_names_have_all_sizes_and_the_users_recipes(tmp_path, monkeypatch):
    built_in = {label for name in recipe_loading.recipe_names()
                for label in (name, *(f"{name}@{size}" for size in recipe_loading.recipe(name).sizes))}
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/mine.toml").write_text('parent = "bert"\n[sizes.huge]\nnetwork.layers = 99\n')
    (tmp_path / "recipes/broken.toml").write_text("parent = ")
    monkeypatch.chdir(tmp_path)
    of_user = {"mine", "mine@huge", *(f"mine@{size}" for size in ("tiny", "mini", "midi")), "broken"}
    assert set(recipe_names("")) == built_in | of_user


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_are_printed_and_are_valid_in_their_shell(shell, capsys, tmp_path):
    assert main(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_STEMMA_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        checked = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("line", "word", "replies"), [
    ("stemma pretrain bert@t", "t", ["tiny"]),  # bash has split the word at "@"
    ("stemma pretrain albe", "albe", recipe_names("albe")),
    ("stemma tre", "tre", ["tree"]),
])
def test_bash_gets_only_the_part_after_its_word_break(line, word, replies, capsys, tmp_path):
    assert main(["--show-completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "stemma").write_text(f'#!/bin/sh\nexec {sys.executable} -m stemma.cli "$@"\n')
    (tmp_path / "stemma").chmod(0o755)
    command = (f"source ./script; COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({line.replace('@', ' @ ')}); "
               "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _stemma_completion ./stemma; printf '%s\\n' \"${COMPREPLY[@]}\"")
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60,
                            check=True)
    assert (result.stdout.split(), result.stderr) == (replies, "")


def test_installing_twice_changes_the_startup_file_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        assert main(["--install-completion", "bash"]) == 0
    assert (tmp_path / ".bashrc").read_text() == "alias ll='ls -l'\nsource ~/.bash_completions/stemma.sh\n"
    assert "complete -o default" in (tmp_path / ".bash_completions/stemma.sh").read_text()
    assert str(tmp_path / ".bash_completions/stemma.sh") in capsys.readouterr().out


def test_the_running_shell_is_the_default(monkeypatch, capsys):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("fish", "/usr/bin/fish"))
    assert main(["--show-completion"]) == 0
    assert "complete --command stemma" in capsys.readouterr().out
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    assert main(["--install-completion"]) == 2
    assert capsys.readouterr().err.startswith('error: there is no completion for "tcsh".')
