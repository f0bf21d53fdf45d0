"""Does a language model know the missing word? Two tests of it that need no training.

LAMBADA (arXiv:1606.06031): the last word of a passage, which people guess only if they have read all of it. It counts
as known if every token of it is the likeliest at its place. The Children's Book Test (arXiv:1511.02301): a word left
out of a sentence, ten candidates, twenty sentences before it; a candidate is scored with the rest of its sentence, as
the paper on GPT-2 does.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.errors import UserError, did_you_mean
from stemma.evaluation.accuracy import wilson_interval
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.lm_scorer import LMScorer
from stemma.evaluation.perplexity import exp_mean
from stemma.model import Model
from stemma.text.readers import list_files
from stemma.text.tables import MAX_COLUMNS_SHOWN, Table, json_table
from stemma.text.text_io import display_name, read_text

logger = logging.getLogger(__name__)

FORMATS = ("lambada", "cbt")
BLANK = "XXXXX"
NUMBERED_LINE = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
CHUNK = 512  # questions scored at a time


@dataclass(frozen=True)
class ClozeItem:
    """What may follow a context; `answer` is the place of the right one."""

    context: str
    continuations: tuple[str, ...]
    gold_index: int
    line: int


def cloze(model: Model, path: str | Path, kind: str = "auto", length: int | None = None, limit: int | None = None,
          on_progress: Callable[[int], None] = lambda questions: None) -> dict[str, Any]:
    """Accuracy with its 95% interval; for last words also their perplexity, for candidates what guessing would give."""
    reader = LMScorer(model, length)
    kind, questions = read_cloze_items(path, kind)
    questions = questions[:limit]
    tokenizer = model.require_tokenizer()
    unknown = tokenizer.special_token_ids.get("unknown")
    right, nats, cut, chance, strange = 0, 0.0, 0, 0.0, 0
    began = time.perf_counter()
    for start in range(0, len(questions), CHUNK):
        chunk = questions[start:start + CHUNK]
        contexts = [question.context for question in chunk for _ in question.continuations]
        scores = iter(score_continuations(reader, contexts, [text for one in chunk for text in one.continuations]))
        for question in chunk:
            mine = [next(scores) for _ in question.continuations]
            if kind == "lambada":  # a word that cannot be spelt cannot be said
                spelt = unknown not in tokenizer.encode(question.continuations[0], special=False).ids
                strange += not spelt
                right += mine[0].is_greedy and spelt
            else:
                chances = [one.log_probability for one in mine]
                right += chances.index(max(chances)) == question.gold_index
            nats -= mine[question.gold_index].log_probability
            cut += any(one.num_truncated for one in mine)
            chance += 1 / len(mine)
        on_progress(len(chunk))
    seconds = time.perf_counter() - began
    count = len(questions)
    if strange:
        logger.warning(
            f"{strange:,} of {count:,} last words hold a token that this vocabulary does not know; they count as "
            "wrong.")
    if cut:
        logger.warning(
            f"{cut:,} of {count:,} contexts are longer than the {reader.length} tokens that are read at a time; "
            "only their ends were read.")
    result: dict[str, Any] = {"format": kind, "accuracy": right / count, "interval": wilson_interval(right, count),
                              "right": right, "questions": count}
    result |= {"perplexity": exp_mean(nats, count)} if kind == "lambada" else {"chance": chance / count}
    return {**result, "unknown": strange, "cut": cut, "seconds": seconds}


def read_cloze_items(path: str | Path, kind: str = "auto") -> tuple[str, list[ClozeItem]]:
    """The questions of a file and its format: as asked, or as it looks like."""
    if kind not in ("auto", *FORMATS):
        raise UserError(f'--format is "{kind}"; choose auto, {" or ".join(FORMATS)}.{did_you_mean(kind, FORMATS)}')
    files = list_files([path])
    if len(files) != 1:
        raise UserError(f"{path} is {len(files)} files; name one.")
    name, text = display_name(files[0]), "".join(read_text(files[0], "utf-8", "strict"))
    if not text.strip():
        raise UserError(f"{name} is empty; it should hold passages or questions.")
    if text.lstrip().startswith("{"):
        table = json_table(name, text)
        kind = ("cbt" if "candidates" in table.columns else "lambada") if kind == "auto" else kind
        found = _cbt_json_items(table) if kind == "cbt" else _lambada_json_items(table)
    else:
        kind = ("cbt" if BLANK in text and re.match(r"\s*1\s", text) else "lambada") if kind == "auto" else kind
        found = _cbt_items(text) if kind == "cbt" else _lambada_items(text)
    questions, problems = [], []
    for one in found:
        questions.append(one) if isinstance(one, ClozeItem) else problems.append(one)
    if problems:
        shown = [(f"line {line}", what) for line, what in problems[:MAX_COLUMNS_SHOWN]]
        raise UserError(f"{name} has {len(problems):,} that cannot be asked, as {kind}", shown)
    if not questions:
        raise UserError(f"{name} has no question in it; the last line of each should hold {BLANK}, the answer and the "
                        "candidates.")
    return kind, questions


Problem = tuple[int, str]


def _lambada_items(text: str) -> Iterator[ClozeItem | Problem]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _last_word_item(line, number)


def _lambada_json_items(table: Table) -> Iterator[ClozeItem | Problem]:
    for row, line in zip(table.rows, table.lines, strict=True):
        text = row.get("text")
        yield _last_word_item(text, line) if isinstance(text, str) else (line, 'has no "text"')


def _last_word_item(passage: str, line: int) -> ClozeItem | Problem:
    """The white space before the word belongs to it: that is how models know the beginning of a word."""
    passage = passage.rstrip()
    words = passage.split()
    if len(words) < 2:
        return line, "is one word, with nothing before it to guess it from"
    context = passage[:-len(words[-1])].rstrip()
    return ClozeItem(context, (passage[len(context):],), 0, line)


def _cbt_items(text: str) -> Iterator[ClozeItem | Problem]:
    """Numbered sentences; the one with the blank ends a question: sentence, answer, (nothing,) candidates."""
    before: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            before = []
            continue
        found = NUMBERED_LINE.fullmatch(line.strip())
        if found is None:
            yield number, "does not begin with a number"
            continue
        if found[1] == "1":
            before = []
        cells = [cell.strip() for cell in found[2].split("\t") if cell.strip()]
        if len(cells) == 1 and BLANK not in cells[0]:
            before.append(cells[0])
        elif len(cells) != 3:
            yield number, f"should hold a sentence with {BLANK}, the answer and the candidates, parted by tabs"
        else:
            yield _cbt_item(" ".join(before), cells[0], cells[1], cells[2].split("|"), number)
            before = []


def _cbt_json_items(table: Table) -> Iterator[ClozeItem | Problem]:
    for row, line in zip(table.rows, table.lines, strict=True):
        lacking = [key for key in ("context", "question", "answer", "candidates") if key not in row]
        context = row.get("context")
        if lacking:
            yield line, f"has no {', '.join(lacking)}"
        elif not isinstance(row["candidates"], list):
            yield line, "candidates should be a list"
        else:
            before = " ".join(map(str, context)) if isinstance(context, list) else str(context)
            yield _cbt_item(before, str(row["question"]), str(row["answer"]), list(map(str, row["candidates"])), line)


def _cbt_item(before: str, sentence: str, answer: str, candidates: Sequence[str], line: int) -> ClozeItem | Problem:
    if sentence.count(BLANK) != 1:
        return line, f"should hold {BLANK} once"
    if answer not in candidates:
        return line, f'the answer "{answer}" is not among the candidates'
    text = f"{before} {sentence}".strip()
    start, rest = text.split(BLANK)
    context = start.rstrip()
    return ClozeItem(context, tuple(start[len(context):] + word + rest for word in candidates),
                     candidates.index(answer),
                    line)
