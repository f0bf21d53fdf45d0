"""Generates pages when the site is built, so that they always match the code.

The command line comes from the commands themselves, the Python API from the names that the package exports (their
docstrings are read by mkdocstrings), the changelog and the contributing guide from the files at the root.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
ROOT_FILES = {"project/changelog.md": "CHANGELOG.md", "project/contributing.md": "CONTRIBUTING.md"}
COMMON = ("--plugin", "--recipes", "--json", "--debug", "--help")  # nearly every command has them: listed once
API = {
    "Models": ["load", "build", "save", "Model"],
    "Recipes": ["recipe", "Recipe", "tree", "diff", "use_plugin"],
    "Text": ["clean", "overlap", "train_tokenizer", "build_corpus", "annotate", "inspect"],
    "Training": ["pretrain", "resume", "finetune", "multitask", "pipeline", "average", "Callback"],
    "Other programs": ["export", "convert"],
    "Inference and evaluation": ["fill", "generate", "stream", "translate", "embed", "predict", "evaluate",
                                 "perplexity", "pairs", "senses", "cloze", "prompt"],
    "Word vectors": ["neighbours", "analogy", "similarity"],
    "Experiments": ["compare", "ablate", "cost", "layer_cost", "quickstart"],
    "Errors": ["UserError"],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for page, content in generated_pages().items():
        files.append(File.generated(config, page, content=content))
    return files


def generated_pages() -> dict[str, str]:
    """Content of each page by its path. Does not import mkdocs, so that a test can use it."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        pages = {page: with_page_links((ROOT / source).read_text()) for page, source in ROOT_FILES.items()}
        return pages | {"reference/cli.md": "\n".join(command_line()), "reference/api.md": "\n".join(python_api())}
    finally:
        sys.path.remove(str(ROOT / "src"))


def with_page_links(text: str) -> str:
    """A file of the root as a page of project/: links into docs/ become links between pages."""
    return re.sub(r"\]\(docs/", "](../", text)


def command_line() -> Iterator[str]:
    """`stemma COMMAND --help` of every command, as one page."""
    from stemma.cli import _build_command

    root = _build_command()
    context = root.context_class(root, info_name="stemma")
    yield "# Command line\n"
    yield "This page is generated from `stemma COMMAND --help`.\n"
    yield from _command_table("stemma", root, context)
    yield "\n## Options of every command {: #common }\n"
    yield from _options([record for record in _records(root.commands["pretrain"], context) if _is_common(record)])
    yield ("\nA command that computes also has `--device`. "
           "Where a usage line has `KEY=VALUE`, any key of the recipe can be set.\n")
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from _group(name, command, context)
        else:
            yield from _section(f"stemma {name}", command, context, level=2)


def _group(name: str, group: Any, context: Any) -> Iterator[str]:
    inner = group.context_class(group, info_name=name, parent=context)
    yield f"\n## stemma {name}\n"
    yield from _help(group)
    yield from _command_table(f"stemma {name}", group, inner)
    documented: dict[str, Any] = {}
    for verb in group.list_commands(inner):
        command = group.get_command(inner, verb)
        same = next((other for other, records in documented.items() if records == _records(command, inner)), None)
        if same is None:
            documented[verb] = _records(command, inner)
            yield from _section(f"stemma {name} {verb}", command, inner, level=3)
        else:
            yield f"\n### stemma {name} {verb}\n"
            yield f"The same options as [`stemma {name} {same}`](#stemma-{name}-{same}).\n"


def _section(path: str, command: Any, context: Any, level: int) -> Iterator[str]:
    inner = command.context_class(command, info_name=path.split()[-1], parent=context)
    yield f"\n{'#' * level} {path}\n"
    yield from _help(command)
    yield f"\n```text\n{command.get_usage(inner).removeprefix('Usage: ')}\n```\n"
    yield from _options([record for record in _records(command, context) if not _is_common(record)])


def _help(command: Any) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        example = paragraph.strip().removeprefix("Example: ")
        yield f"\n```text\n{' '.join(example.split())}\n```\n" if example != paragraph.strip() else f"{paragraph}\n"


def _records(command: Any, context: Any) -> list[tuple[str, str]]:
    """(flags, help) of each option of a command."""
    inner = command.context_class(command, info_name=command.name, parent=context)
    records = [param.get_help_record(inner) for param in command.get_params(inner)]
    return [record for record in records if record is not None]


def _is_common(record: tuple[str, str]) -> bool:
    return any(name in re.split(r"[ ,]+", record[0]) for name in COMMON)


def _options(records: list[tuple[str, str]]) -> Iterator[str]:
    if records:
        yield "\n| | |\n|---|---|"
        for flags, description in records:
            plain = re.sub(r"\s*<(list\[)?(str|path|int|float|Path)\]?>", "", flags)
            yield f"| `{plain}` | {_cell(description)} |"
        yield ""


def _command_table(path: str, group: Any, context: Any) -> Iterator[str]:
    yield "\n| command | |\n|---|---|"
    for name in group.list_commands(context):
        description = " ".join((group.get_command(context, name).help or "").split("\n\n")[0].split())
        if path == "stemma finetune":
            from stemma.tasks.kinds import task_kind

            description = task_kind(name).description
        yield f"| [`{name}`](#{path.replace(' ', '-')}-{name}) | {_cell(description)} |"
    yield ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def python_api() -> Iterator[str]:
    import stemma

    listed = [name for names in API.values() for name in names]
    missing = set(stemma.__all__) - set(listed) - {"show"}  # another name of `recipe`
    if missing:
        raise KeyError(f"docs/site_pages.py: the page of the Python API has no section for {', '.join(missing)}")
    yield "# Python API\n"
    yield ("Every name below is an attribute of `stemma`: `import stemma; stemma.load(...)`. "
           "[Use models from Python](../how-to/python.md) has examples.\n")
    for section, names in API.items():
        yield f"## {section}\n"
        for name in names:
            module, _, attribute = stemma._HOMES[name].partition(":")
            yield (f"::: {module}.{attribute or name}\n    options:\n      heading: stemma.{name}\n"
                   f"      toc_label: {name}\n")
