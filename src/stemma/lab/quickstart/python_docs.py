"""A corpus that every user already has: the documentation inside their own Python, read without running any of it.

Docstrings and block comments are found by parsing the standard library's source, never by importing it, so that
nothing is executed; the `pydoc` topics (the language reference behind `help()`) are read from their source as well.
"""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from stemma.atomic_files import atomic_write
from stemma.errors import UserError
from stemma.lab.quickstart.docstring_prose import paragraphs

# Not documentation of the library: tests, an editor, a converter's grammars, generated tables, foreign packages.
EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "site-packages", "dist-packages"}
GENERATED = "_sysconfigdata"
_COMMENT = re.compile(r"^[ \t]*#(?: .*|)$")


@dataclass(frozen=True)
class DocPage:
    """One document: a module's documentation or one topic of the language reference, a sentence a line."""

    name: str
    kind: Literal["module", "topic"]
    text: str

    @property
    def sentences(self) -> list[str]:
        return self.text.splitlines()

    @property
    def words(self) -> int:
        return len(self.text.split())

    @property
    def group(self) -> str:
        """What is held out together: a top-level package with all below it, or one topic."""
        return self.name.partition(".")[0] if self.kind == "module" else f"topic {self.name}"


def collect_pages(root: Path | None = None) -> list[DocPage]:
    """All pages of the standard library at `root` (by default the running Python's), modules first, by name."""
    root = Path(root) if root is not None else Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    pages = [page for name, kind, documents in _sources(root) if (page := _build_page(name, kind, documents,
                                                                                      seen)).text]
    if not pages:
        raise UserError(f"no Python source with documentation under {root}; this Python comes without the source of "
                        "its standard library: use another one, or give your own text to `stemma pretrain`.")
    return pages


def split_pages(pages: Sequence[DocPage], seed: int, share: float = 0.1) -> tuple[list[DocPage], list[DocPage]]:
    """Training and held-out pages; whole packages change sides, so no module is described on both."""
    sizes: dict[str, int] = {}
    for page in pages:
        sizes[page.group] = sizes.get(page.group, 0) + page.words
    wanted, taken = share * sum(sizes.values()), 0
    held_out: set[str] = set()
    groups = [sorted(sizes)[index] for index in np.random.default_rng(seed).permutation(len(sizes))]
    for largest in (wanted / 5, wanted):  # many small packages tell more than one large one, which only fills up
        for group in groups:
            if group not in held_out and sizes[group] <= min(largest, wanted - taken):
                held_out.add(group)
                taken += sizes[group]
    return [page for page in pages if page.group not in held_out], [page for page in pages if page.group in held_out]


def write_pages(pages: Iterable[DocPage], path: Path) -> None:
    """A sentence a line, an empty line between documents: what `stemma corpus build` reads."""
    atomic_write(Path(path), "\n\n".join(page.text for page in pages) + "\n")


def _build_page(name: str, kind: Literal["module", "topic"], documents: Iterable[str], seen: set[str]) -> DocPage:
    lines: list[str] = []
    for document in documents:
        for sentences in paragraphs(document, quoted_code=kind == "topic"):
            key = " ".join(sentences).casefold()
            if key not in seen:  # one copy of what is said in several places, or memorising would look like reading
                seen.add(key)
                lines += sentences
    return DocPage(name, kind, "\n".join(lines))


def _sources(root: Path) -> Iterator[tuple[str, Literal["module", "topic"], list[str]]]:
    modules = {}
    for place, folders, names in os.walk(root):
        folders[:] = filter(_is_documented, folders)  # the others are not entered: foreign packages can be many
        package = Path(place).relative_to(root).parts
        for stem in (name.removesuffix(".py") for name in names if name.endswith(".py")):
            if _is_documented(stem) and not stem.startswith(GENERATED):
                parts = package if stem == "__init__" and package else (*package, stem)
                modules[".".join(parts)] = Path(place) / f"{stem}.py"
    for name, path in sorted(modules.items()):
        tree, source = _parse(path)
        if tree is not None:
            yield name, "module", _documents(tree, source)
    tree, _ = _parse(root / "pydoc_data" / "topics.py")
    for name, text in sorted(_topics(tree).items() if tree is not None else ()):
        yield name, "topic", [text]


def _is_documented(name: str) -> bool:
    return name.isidentifier() and name not in EXCLUDED


def _parse(path: Path) -> tuple[ast.Module | None, str]:
    """Source that is missing or does not parse has nothing to say: the library ships broken files on purpose."""
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stray backslashes in other people's strings
            return ast.parse(source), source
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None, ""


def _documents(tree: ast.Module, source: str) -> list[str]:
    """Docstrings and block comments in the order of the source."""
    found: list[tuple[int, str]] = []
    strings: set[int] = set()  # lines inside docstrings: a "#" there is an example's, not a comment
    for node in _definitions(tree):
        text = ast.get_docstring(node, clean=False)
        if text:
            literal = node.body[0]
            found.append((literal.lineno, text))
            strings.update(range(literal.lineno, (literal.end_lineno or literal.lineno) + 1))
    found += _comments(source, strings)
    return [text for _, text in sorted(found)]


def _definitions(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for field in ("body", "orelse", "handlers", "finalbody"):  # only statements can hold definitions
        children = getattr(node, field, ())
        for child in children if isinstance(children, list) else ():
            yield from _definitions(child)


def _comments(source: str, strings: set[int]) -> Iterator[tuple[int, str]]:
    """Comments of two lines and more; shorter ones are remarks about the code beside them."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        if _COMMENT.match(line) and number not in strings:
            block.append(line.strip()[2:])
            continue
        if len(block) > 1:
            yield number - len(block), "\n".join(block)
        block = []


def _topics(tree: ast.Module) -> dict[str, str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(statement.value)
            return topics
    return {}
