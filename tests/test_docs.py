"""Runs every command and every Python block of the documentation, in order, in a temporary folder with small data."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from commands import python
from commands import stemma_unreported as stemma
from conftest import small_text

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORTER = [(re.compile(r"--minutes \S+"), "--steps 4"), (re.compile(r"--steps [\d_]{2,}"), "--steps 4"),
           (re.compile(r"--tokens \d{6,}"), "--tokens 3000 training.warmup_steps=0"),
           (re.compile(r"--seeds 3"), "--seeds 2")]
HAS_LENGTH = re.compile(r"--(epochs|steps|rates|help)\b")  # options that set the length of a fine-tune
PLUGIN_FILE = re.compile(r"# \S+\.py\n")  # first line of a Python block that is a file for the commands
ANY_FILE = "*"
SKIPPED = ("stemma quickstart",)  # tested in tests/lab
SLOW = ("family/seq2seq", "family/encoders", "family/recurrence", "family/modern", "family/prefix",
        "family/permuted")  # up to a minute each; other tests cover these features
SLOW_COMMANDS = ("stemma ablate",)  # tests/lab covers it


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")


def runnable(page: Path) -> list[tuple[str, str]]:
    """(language, content) of each command line and each Python block."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, item) for language, content in blocks if not PLUGIN_FILE.match(content)
            for item in ([content] if language == "python" else content.splitlines())]


@dataclass
class CommandGroup:
    outputs: set[str]  # files and folders that its commands write
    names: set[str]  # all words of its commands
    indices: list[int]  # of its commands in the page


def independent_groups(page: Path) -> list[list[tuple[str, str]]]:
    """The commands of a page in independent groups, which test workers can run in parallel. Two commands belong
    together if one names an output of the other; a Python block that writes files belongs to all later commands."""
    groups: list[CommandGroup] = []
    commands = runnable(page)
    for index, (language, content) in enumerate(commands):
        names = set(re.findall(r"[\w.-]+", content))
        outputs = set(re.findall(r"(?:--out|--html|--exclude) +([\w.-]+)", content))
        outputs |= {ANY_FILE} if language == "python" and "write" in content else set()
        related = [group for group in groups if group.outputs & (names | {ANY_FILE}) or outputs & group.names]
        groups = [group for group in groups if group not in related]
        groups.append(CommandGroup(outputs.union(*(group.outputs for group in related)),
                                   names.union(*(group.names for group in related)),
                                   sorted([*(earlier for group in related for earlier in group.indices), index])))
    return [[commands[index] for index in group.indices] for group in sorted(groups, key=lambda group: group.indices)]


@pytest.mark.parametrize(("page", "commands"), [
    pytest.param(page, commands, id=f"{page_name(page)}-{number}", marks=[pytest.mark.slow] * (
        page_name(page) in SLOW or any(line.startswith(SLOW_COMMANDS) for _, line in commands)))
    for page in PAGES for number, commands in enumerate(independent_groups(page), 1)])
def test_the_commands_of_the_page_succeed(page: Path, commands: list[tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(small_text())
    (tmp_path / "held-out.txt").write_text(small_text(seed=1))
    write_parallel_text(tmp_path)
    write_task_data(tmp_path)
    for name, content in re.findall(r"^```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)^```", page.read_text(),
                                    re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for language, line in commands:
        if language == "python":
            process = python(line, folder=tmp_path)
            assert process.code == 0, f"{line}\n{process.out}\n{process.err}"
            continue
        command = line.split("#")[0].strip()
        if command.startswith("make "):
            assert {word for word in command.split()[1:] if "=" not in word} <= set(targets), line
        elif command.startswith("stemma ") and not command.startswith(SKIPPED):
            for pattern, replacement in SHORTER:
                command = pattern.sub(replacement, command)
            if command.startswith("stemma finetune") and not HAS_LENGTH.search(command):
                command += " --epochs 1"
            process = stemma(*shlex.split(command)[1:], folder=tmp_path)
            assert process.code == 0, f"{command}\n{process.out}\n{process.err}"
        elif command and not command.startswith(SKIPPED):
            pytest.fail(f"{page_name(page)} has a command that this test cannot run: {line}")


def test_commands_that_share_no_file_are_in_separate_groups(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nstemma a --out run\nstemma b\nstemma c run --out other # say so\n```\n"
                    "```python\nload('other/model')\n```\n```sh\nstemma d --out lab\nstemma e lab\n```\n")
    groups = [[line.split()[1] if language == "sh" else language for language, line in group]
              for group in independent_groups(page)]
    assert groups == [["a", "c", "python"], ["b"], ["d", "e"]]
    page.write_text("```sh\nstemma a\n```\n```python\nwrite()\n```\n```sh\nstemma b\nstemma c\n```\n")
    assert [len(group) for group in independent_groups(page)] == [1, 3]


def write_parallel_text(folder: Path) -> None:
    """A table of pairs, and aligned files with the same pairs; the target words are the source words with a suffix."""
    english = [line for line in small_text().splitlines() if line.strip()][:120]
    german = [" ".join(word + "en" for word in line.split()) for line in english]
    (folder / "pairs.tsv").write_text("\n".join(["source\ttarget", *map("\t".join, zip(english, german, strict=True))]))
    for name in ("train", "test"):
        (folder / f"{name}.en").write_text("\n".join(english if name == "train" else english[:5]))
        (folder / f"{name}.de").write_text("\n".join(german if name == "train" else german[:5]))


def write_task_data(folder: Path) -> None:
    """Data besides running text: a list of names, dialogues, queries with titles, and labelled texts."""
    lines = [line for line in small_text().splitlines() if line.strip()]
    (folder / "names.txt").write_text("\n".join(dict.fromkeys(line.split()[0].strip(".,;") for line in lines[:9])))
    talks = [{"turns": [{"role": ("user", "system")[turn % 2], "text": line} for turn, line in enumerate(turns)]}
             for turns in zip(lines[0::3], lines[1::3], lines[2::3], strict=False)]
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, talks)))
    rows = [f"{line.split()[0]}\t{line}\t{index % 3}" for index, line in enumerate(lines[:60])]
    reviews = [f"{line}\t{'late' if line.split()[2] > 'n' else 'early'}" for line in lines[:80]]
    for name, labelled in (("reviews", reviews[:60]), ("held-out", reviews[60:])):
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *labelled]))
    words = sorted({word.lower().strip(".,;") for line in lines for word in line.split()})
    (folder / "glove.txt").write_text("".join(f"{word} {' '.join(str(ord(letter) / 99) for letter in (word * 9)[:8])}\n"
                                              for word in words))
    tagged = ["".join(f"{word} {'B-THING' if index == 2 else 'O'}\n" for index, word in enumerate(line.split()))
              for line in lines[:60]]
    (folder / "tags.txt").write_text("\n".join(tagged))
    (folder / "clicks.tsv").write_text("\n".join(["query\ttitle\tlabel", *rows]))


def stemma_commands(page: Path) -> list[list[str]]:
    """The arguments of every stemma command of the page, in order."""
    return [shlex.split(line, comments=True)[1:] for language, line in runnable(page)
            if language == "sh" and line.startswith("stemma ")]


def introductory_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md")),
            *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


def test_the_introductory_pages_evaluate_on_text_that_was_not_trained_on():
    runs = set()
    for page in introductory_pages():
        training_text = {}  # by output folder
        for command, *arguments in stemma_commands(page):
            if "--out" in arguments and ("--corpus" in arguments or "--train" in arguments):
                text = arguments.index("--corpus" if "--corpus" in arguments else "--train")
                training_text[arguments[arguments.index("--out") + 1]] = arguments[text + 1]
            if command == "perplexity":
                assert training_text[arguments[0]] != arguments[1]
            if command == "evaluate":
                assert training_text[arguments[0]] != arguments[arguments.index("--data") + 1]
            if command == "translate" and "--reference" in arguments:
                assert arguments[1] != training_text[arguments[0]]
        runs |= set(training_text)
    assert {"run", "writer", "tuned", "translator", "lab"} <= runs


def test_the_introductory_pages_resume_only_runs_with_a_budget_in_steps_or_tokens():
    resumed = 0
    for page in introductory_pages():
        pretrain_arguments: dict[str, list[str]] = {}  # by output folder
        for command, *arguments in stemma_commands(page):
            if command == "pretrain":
                pretrain_arguments[arguments[arguments.index("--out") + 1]] = arguments
            elif command == "resume":
                assert "--minutes" not in pretrain_arguments[arguments[0]]
                resumed += 1
    assert resumed, "no introductory page has a resume command"


def test_the_readme_promises_no_command_that_is_missing():
    introduction = (ROOT / "README.md").read_text().partition("\n## ")[0]
    commands = {line.split()[0] for line in stemma("--help").out.splitlines() if line.split()}
    for command, promise in (("distill", "compressed"), ("export", "compressed"), ("serve", "served")):
        assert command in commands or promise not in introduction


def site_pages() -> ModuleType:
    spec = spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_have_every_command_and_every_api_name():
    import stemma as package

    pages = site_pages().generated_pages()
    page = pages["reference/cli.md"]
    for command in re.findall(r"^  ([a-z]+) ", stemma("--help").out.partition("Commands:")[2], re.MULTILINE):
        assert f"\n## stemma {command}\n" in page
    assert "### stemma tokenizer train\n" in page and "`--vocab-size N`" in page
    for name in package.__all__:
        assert f"heading: stemma.{name}\n" in pages["reference/api.md"] or name == "show"


def test_the_site_lists_every_page_and_loads_nothing_from_other_servers():
    import yaml

    text = (ROOT / "mkdocs.yml").read_text()
    navigation = set(re.findall(r"[\w/-]+\.md", text.partition("\nnav:")[2]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert navigation == pages | set(site_pages().generated_pages())
    settings = yaml.safe_load(text)
    assert settings["theme"]["font"] is False and not set(settings) & {"extra_javascript", "google_analytics"}
    for sheet in settings["extra_css"]:
        assert "url(" not in (ROOT / "docs" / sheet).read_text()


def options_and_keys() -> tuple[set[str], set[str]]:
    """Every option of every command, and every key of every recipe."""
    from stemma.recipe_loading import list_recipes, recipe
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.schema.training import TrainingSettings

    options = set(re.findall(r"`(--[\w-]+)", site_pages().generated_pages()["reference/cli.md"]))
    keys = {name for info in list_recipes() for key in recipe(info.name).origin
            for name in (key, key.rpartition(".")[0])}
    keys |= {f"training.{key}" for key in TrainingSettings.model_fields}  # also keys that no recipe sets
    return options, keys | {f"finetuning.{key}" for key in FinetuningSettings.model_fields}


def test_the_coming_from_pages_name_only_existing_options_and_keys():
    from stemma.schema.aliases import aliases_of

    options, keys = options_and_keys()
    rows = [row.split("|")[1:3] for page in (ROOT / "docs" / "coming-from").glob("*.md")
            for row in page.read_text().splitlines() if row.startswith("| `")]
    assert len(rows) > 120
    for theirs, ours in rows:
        names = re.findall(r"(?:--|(?:corpus|finetuning|network|objective|tokenizer|training)\.)[\w.-]+", ours)
        for name in names:
            assert name in (options if name.startswith("--") else keys), ours
        for flag in re.findall(r"`(?:--)?(\w[\w-]*)`", theirs):
            aliases = {alias.name for alias in aliases_of(flag)} - {""}
            assert not aliases or not names or aliases & {*names, ours.strip(" `")}, \
                f"{theirs} -> {ours}, not {aliases}"
