"""Every command in the documentation is run, in order, in an empty folder with a text of one's own."""

from __future__ import annotations

import json
import re
import shlex
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
LENGTH = re.compile(r"--(epochs|steps|rates|help)\b")  # a fine-tune that says how long it takes
FILE = re.compile(r"# \S+\.py\n")  # a program that begins so is a file that commands name
ANYTHING = "*"
LONG = ("stemma quickstart",)  # has tests of its own
SLOW = ("family/seq2seq", "family/encoders", "family/recurrence", "family/modern", "family/prefix",
        "family/permuted")  # up to a minute each; what they show has tests of its own
SLOW_COMMANDS = ("stemma ablate",)  # the lab has tests of its own


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")


def typed(page: Path) -> list[tuple[str, str]]:
    """The (language, content) of each command and each program that is meant to be typed."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, one) for language, content in blocks if not FILE.match(content)
            for one in ([content] if language == "python" else content.splitlines())]


def parts(page: Path) -> list[list[tuple[str, str]]]:
    """The commands of a page in groups that need nothing of each other, so that workers can share them out: they go
    together where one names what the other makes, and a program that writes files goes with all that follow."""
    groups: list[tuple[set[str], set[str], list[int]]] = []  # what is made, what is named, and by which
    every = typed(page)
    for number, (language, content) in enumerate(every):
        named = set(re.findall(r"[\w.-]+", content))
        made = set(re.findall(r"(?:--out|--html|--exclude) +([\w.-]+)", content))
        made |= {ANYTHING} if language == "python" and "write" in content else set()
        joined = [group for group in groups if group[0] & (named | {ANYTHING}) or made & group[1]]
        groups = [group for group in groups if group not in joined]
        groups.append((made.union(*(group[0] for group in joined)), named.union(*(group[1] for group in joined)),
                       [*(one for group in joined for one in group[2]), number]))
    return [[every[number] for number in sorted(numbers)] for _, _, numbers in sorted(groups, key=lambda one: one[2])]


@pytest.mark.parametrize(("page", "part"), [
    pytest.param(page, part, id=f"{name_of(page)}-{number}", marks=[pytest.mark.slow] * (
        name_of(page) in SLOW or any(line.startswith(SLOW_COMMANDS) for _, line in part)))
    for page in PAGES for number, part in enumerate(parts(page), 1)])
def test_the_commands_of_the_page_work(page: Path, part: list[tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(small_text())
    (tmp_path / "held-out.txt").write_text(small_text(seed=1))
    write_pairs(tmp_path)
    write_beside(tmp_path)
    for name, content in re.findall(r"^```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)^```", page.read_text(),
                                    re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for language, line in part:
        if language == "python":
            done = python(line, folder=tmp_path)
            assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
            continue
        command = line.split("#")[0].strip()
        if command.startswith("make "):
            assert {word for word in command.split()[1:] if "=" not in word} <= set(targets), line
        elif command.startswith("stemma ") and not command.startswith(LONG):
            for pattern, replacement in SHORTER:
                command = pattern.sub(replacement, command)
            if command.startswith("stemma finetune") and not LENGTH.search(command):
                command += " --epochs 1"
            done = stemma(*shlex.split(command)[1:], folder=tmp_path)
            assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
        elif command and not command.startswith(LONG):
            pytest.fail(f"{name_of(page)} shows a command that no test knows how to run: {line}")


def test_a_page_is_taken_apart_where_nothing_is_shared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nstemma a --out run\nstemma b\nstemma c run --out other # say so\n```\n"
                    "```python\nload('other/model')\n```\n```sh\nstemma d --out lab\nstemma e lab\n```\n")
    together = [[line.split()[1] if kind == "sh" else kind for kind, line in part] for part in parts(page)]
    assert together == [["a", "c", "python"], ["b"], ["d", "e"]]
    page.write_text("```sh\nstemma a\n```\n```python\nwrite()\n```\n```sh\nstemma b\nstemma c\n```\n")
    assert [len(part) for part in parts(page)] == [1, 3]


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


def shown(page: Path) -> list[list[str]]:
    """The words of every command of ours that the page shows, in order."""
    return [shlex.split(line, comments=True)[1:] for language, line in typed(page)
            if language == "sh" and line.startswith("stemma ")]


def tour() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md")),
            *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


def test_the_tour_measures_on_text_that_was_not_trained_on():
    made = set()
    for page in tour():
        read = {}
        for verb, *words in shown(page):
            if "--out" in words and ("--corpus" in words or "--train" in words):
                text = words.index("--corpus" if "--corpus" in words else "--train")
                read[words[words.index("--out") + 1]] = words[text + 1]
            if verb == "perplexity":
                assert read[words[0]] != words[1]
            if verb == "evaluate":
                assert read[words[0]] != words[words.index("--data") + 1]
            if verb == "translate" and "--reference" in words:
                assert words[1] != read[words[0]]
        made |= set(read)
    assert {"run", "writer", "tuned", "translator", "lab"} <= made


def test_the_tour_resumes_to_the_byte_only_what_is_counted_in_steps_or_tokens():
    resumed = 0
    for page in tour():
        made: dict[str, list[str]] = {}
        for verb, *words in shown(page):
            if verb == "pretrain":
                made[words[words.index("--out") + 1]] = words
            elif verb == "resume":
                assert "--minutes" not in made[words[0]]
                resumed += 1
    assert resumed, "no page of the tour shows a resume"


def test_the_readme_names_no_verb_that_is_missing():
    introduction = (ROOT / "README.md").read_text().partition("\n## ")[0]
    there = {name for line in stemma("--help").out.splitlines() if (name := line.split()[0] if line.split() else "")}
    for verb, promise in (("distill", "compressed"), ("export", "compressed"), ("serve", "served")):
        assert verb in there or promise not in introduction


def site_pages() -> ModuleType:
    spec = spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_made_pages_have_every_command_and_every_name():
    import stemma as package

    made = site_pages().made_pages()
    page = made["reference/cli.md"]
    for verb in re.findall(r"^  ([a-z]+) ", stemma("--help").out.partition("Commands:")[2], re.MULTILINE):
        assert f"\n## stemma {verb}\n" in page
    assert "### stemma tokenizer train\n" in page and "`--vocab-size N`" in page
    for name in package.__all__:
        assert f"heading: stemma.{name}\n" in made["reference/api.md"] or name == "show"


def test_the_site_has_every_page_in_its_menu_and_asks_no_other_server():
    import yaml

    text = (ROOT / "mkdocs.yml").read_text()
    menu = set(re.findall(r"[\w/-]+\.md", text.partition("\nnav:")[2]))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert menu == there | set(site_pages().made_pages())
    settings = yaml.safe_load(text)
    assert settings["theme"]["font"] is False and not set(settings) & {"extra_javascript", "google_analytics"}
    for sheet in settings["extra_css"]:
        assert "url(" not in (ROOT / "docs" / sheet).read_text()


def known_words() -> tuple[set[str], set[str]]:
    """Every option of every command, and every key that some recipe has."""
    from stemma.recipe_loading import list_recipes, recipe
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.schema.training import TrainingSettings

    options = set(re.findall(r"`(--[\w-]+)", site_pages().made_pages()["reference/cli.md"]))
    keys = {part for one in list_recipes() for key in recipe(one.name).origin for part in (key, key.rpartition(".")[0])}
    keys |= {f"training.{key}" for key in TrainingSettings.model_fields}  # those too that no recipe sets
    return options, keys | {f"finetuning.{key}" for key in FinetuningSettings.model_fields}


def test_the_pages_for_newcomers_name_what_there_is():
    from stemma.schema.aliases import aliases_of

    options, keys = known_words()
    rows = [row.split("|")[1:3] for page in (ROOT / "docs" / "coming-from").glob("*.md")
            for row in page.read_text().splitlines() if row.startswith("| `")]
    assert len(rows) > 120
    for theirs, ours in rows:
        named = re.findall(r"(?:--|(?:corpus|finetuning|network|objective|tokenizer|training)\.)[\w.-]+", ours)
        for word in named:
            assert word in (options if word.startswith("--") else keys), ours
        for word in re.findall(r"`(?:--)?(\w[\w-]*)`", theirs):
            known = {here.name for here in aliases_of(word)} - {""}
            assert not known or not named or known & {*named, ours.strip(" `")}, f"{theirs} -> {ours}, not {known}"
