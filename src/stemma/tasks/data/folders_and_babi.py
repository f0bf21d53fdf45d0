"""Readers of class folders with one file per text (IMDB, THUCNews), and of bAbI stories.

bAbI (arXiv:1502.05698): lines "number sentence", where a question has tabs before its answer and its supporting facts,
and a number 1 begins a new story. Answers are single words that often do not occur in the story: yes, two, a path
"s,e". So an example is a text pair (story so far, question), and the answers of the training set are the classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from stemma.errors import UserError
from stemma.tasks.data.examples import TextExample
from stemma.tasks.data.file_reader import ErrorCollector, FileReader

NUMBERED = re.compile(r"(\d+) (.*)", re.DOTALL)


def read_class_folders(path: Path, reader: FileReader, classes: Sequence[str] | None = None,
                       clean: Callable[[str], str] = lambda text: text) -> list[TextExample]:
    """One folder per class, one .txt file per text."""
    folders = sorted(folder for folder in path.iterdir()
                     if folder.is_dir() and (folder.name in classes if classes else not folder.name.startswith(".")))
    if not folders or (classes and len(folders) < len(classes)):
        expected = " and ".join(classes) if classes else "one for each class"
        raise UserError(f"{path} lacks folders of texts: it should have {expected}.")
    examples, problems = [], ErrorCollector(str(path))
    for folder in folders:
        for file in sorted(folder.glob("*.txt")):
            try:
                text = clean(reader.text(file)[1]).strip()
            except UserError as error:
                problems.add(str(file), error.message)
                continue
            examples.append(TextExample(str(file), (text,), folder.name, None, f"{folder.name}/{file.stem}"))
    problems.raise_if_any()
    if not examples:
        raise UserError(f"the folders of {path} have no .txt files.")
    return examples


def read_babi(path: str | Path, reader: FileReader) -> list[TextExample]:
    name, text = reader.text(path)
    problems, examples, story = ErrorCollector(name), [], list[str]()
    for line_number, line in enumerate(text.split("\n"), 1):
        where = f"{name}, line {line_number}"
        match = NUMBERED.fullmatch(line.strip("\n "))
        if not match:
            if line.strip():
                problems.add(where, "no number before the sentence")
            continue
        if match[1] == "1":
            story = []
        sentence, *more = (cell.strip() for cell in match[2].split("\t"))
        if not more:
            story.append(sentence)
        elif not sentence or not more[0] or not story:
            missing = "question" if not sentence else "answer" if not more[0] else "story before the question"
            problems.add(where, f"no {missing}")
        else:
            examples.append(TextExample(where, (" ".join(story), sentence), more[0], None, str(line_number)))
    problems.raise_if_any()
    if not examples:
        raise UserError(f"{name} has no question: a line with one has a tab before its answer.")
    return examples
