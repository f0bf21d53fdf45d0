"""Text that every user has: the documentation inside their own Python, extracted without executing any code.

Docstrings and block comments come from the parsed source of the standard library, which is not imported. The `pydoc`
topics (the language reference behind `help()`) are read from their source as well.
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
    """A document: the documentation of a module or a topic of the language reference, one sentence per line."""

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
        """The unit that is held out as a whole: a top-level package, or a topic."""
        return self.name.partition(".")[0] if self.kind == "module" else f"topic {self.name}"


def collect_pages(root: Path | None = None) -> list[DocPage]:
    """All pages of the standard library at `root` (by default the running Python's), modules first, by name."""
    root = Path(root) if root is not None else Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    pages = [page for name, kind, documents in _sources(root)
             if (page := _build_page(name, kind, documents, seen)).text]
    if not pages:
        raise UserError(f"no Python source with documentation under {root}; this Python comes without the source of "
                        "its standard library: use another one, or give your own text to `stemma pretrain`.")
    return pages


def split_pages(pages: Sequence[DocPage], seed: int, fraction: float = 0.1) -> tuple[list[DocPage], list[DocPage]]:
    """Training and held-out pages, split by whole packages, so that no package is in both."""
    sizes: dict[str, int] = {}
    for page in pages:
        sizes[page.group] = sizes.get(page.group, 0) + page.words
    target, total = fraction * sum(sizes.values()), 0
    held_out: set[str] = set()
    groups = [sorted(sizes)[index] for index in np.random.default_rng(seed).permutation(len(sizes))]
    for max_size in (target / 5, target):  # small packages first: many of them are more diverse than one large one
        for group in groups:
            if group not in held_out and sizes[group] <= min(max_size, target - total):
                held_out.add(group)
                total += sizes[group]
    return [page for page in pages if page.group not in held_out], [page for page in pages if page.group in held_out]


def write_pages(pages: Iterable[DocPage], path: Path) -> None:
    """Write one sentence per line, with an empty line between documents, for `stemma corpus build`."""
    atomic_write(Path(path), "\n\n".join(page.text for page in pages) + "\n")


def _build_page(name: str, kind: Literal["module", "topic"], documents: Iterable[str], seen: set[str]) -> DocPage:
    lines: list[str] = []
    for document in documents:
        for sentences in paragraphs(document, quoted_code=kind == "topic"):
            key = " ".join(sentences).casefold()
            if key not in seen:  # without duplicates, which would reward memorization
                seen.add(key)
                lines += sentences
    return DocPage(name, kind, "\n".join(lines))


def _sources(root: Path) -> Iterator[tuple[str, Literal["module", "topic"], list[str]]]:
    modules = {}
    for folder, folders, names in os.walk(root):
        folders[:] = filter(_is_documented, folders)  # skip the others: there may be many third-party packages
        package = Path(folder).relative_to(root).parts
        for stem in (name.removesuffix(".py") for name in names if name.endswith(".py")):
            if _is_documented(stem) and not stem.startswith(GENERATED):
                parts = package if stem == "__init__" and package else (*package, stem)
                modules[".".join(parts)] = Path(folder) / f"{stem}.py"
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
    """Syntax tree and source; the tree is None if the file is missing or does not parse."""
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in the parsed source
            return ast.parse(source), source
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None, ""


def _documents(tree: ast.Module, source: str) -> list[str]:
    """Docstrings and block comments in the order of the source."""
    texts: list[tuple[int, str]] = []
    strings: set[int] = set()  # lines of docstrings: a "#" there is no comment
    for node in _definitions(tree):
        text = ast.get_docstring(node, clean=False)
        if text:
            literal = node.body[0]
            texts.append((literal.lineno, text))
            strings.update(range(literal.lineno, (literal.end_lineno or literal.lineno) + 1))
    texts += _comments(source, strings)
    return [text for _, text in sorted(texts)]


def _definitions(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for field in ("body", "orelse", "handlers", "finalbody"):  # only statements can hold definitions
        children = getattr(node, field, ())
        for child in children if isinstance(children, list) else ():
            yield from _definitions(child)


def _comments(source: str, strings: set[int]) -> Iterator[tuple[int, str]]:
    """Block comments of at least two lines; shorter ones are mostly remarks about code."""
    block: list[str] = []
    for line_number, line in enumerate([*source.splitlines(), ""], start=1):
        if _COMMENT.match(line) and line_number not in strings:
            block.append(line.strip()[2:])
            continue
        if len(block) > 1:
            yield line_number - len(block), "\n".join(block)
        block = []


def _topics(tree: ast.Module) -> dict[str, str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(statement.value)
            return topics
    return {}
