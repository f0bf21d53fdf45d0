"""Cloze tests of a language model, zero-shot.

LAMBADA (arXiv:1606.06031): predict the last word of a passage, which needs the whole passage. It is correct if every
token of it is the most probable one. The Children's Book Test (arXiv:1511.02301): choose the missing word of a sentence
among ten candidates, after twenty sentences of context. A candidate is scored with the rest of its sentence, as in the
GPT-2 paper.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.errors import UserError, did_you_mean, first_problems, pluralize
from stemma.evaluation.accuracy import wilson_interval
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.lm_scorer import LMScorer
from stemma.evaluation.perplexity import exp_mean
from stemma.model import Model
from stemma.text.readers import list_files
from stemma.text.tables import Table, json_table
from stemma.text.text_io import display_name, read_text

logger = logging.getLogger(__name__)

FORMATS = ("lambada", "cbt")
BLANK = "XXXXX"
NUMBERED_LINE = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
CHUNK = 512  # items scored at a time


@dataclass(frozen=True)
class ClozeItem:
    """A context and its possible continuations."""

    context: str
    continuations: tuple[str, ...]
    gold_index: int
    line: int


def cloze(model: Model, path: str | Path, kind: str = "auto", length: int | None = None, limit: int | None = None,
          on_progress: Callable[[int], None] = lambda questions: None) -> dict[str, Any]:
    """Accuracy with its 95% interval; for last words also their perplexity, for candidates the chance level."""
    scorer = LMScorer(model, length)
    kind, items = read_cloze_items(path, kind)
    items = items[:limit]
    tokenizer = model.require_tokenizer()
    unknown_id = tokenizer.special_token_ids.get("unknown")
    correct, nats, truncated, chance, unknown = 0, 0.0, 0, 0.0, 0
    start_time = time.perf_counter()
    for start in range(0, len(items), CHUNK):
        chunk = items[start:start + CHUNK]
        contexts = [item.context for item in chunk for _ in item.continuations]
        continuations = [text for item in chunk for text in item.continuations]
        all_scores = iter(score_continuations(scorer, contexts, continuations))
        for item in chunk:
            scores = [next(all_scores) for _ in item.continuations]
            if kind == "lambada":  # an unknown token stands for many words, so it never counts as correct
                is_known = unknown_id not in tokenizer.encode(item.continuations[0], special=False).ids
                unknown += not is_known
                correct += scores[0].is_greedy and is_known
            else:
                values = [score.log_probability for score in scores]
                correct += values.index(max(values)) == item.gold_index
            nats -= scores[item.gold_index].log_probability
            truncated += any(score.num_truncated for score in scores)
            chance += 1 / len(scores)
        on_progress(len(chunk))
    seconds = time.perf_counter() - start_time
    count = len(items)
    if unknown:
        logger.warning(
            f"{unknown:,} of {count:,} last words contain a token that this vocabulary does not know; they count as "
            "wrong.")
    if truncated:
        logger.warning(
            f"{truncated:,} of {count:,} contexts are longer than the {scorer.length} tokens of the window; only their "
            "ends were scored.")
    result: dict[str, Any] = {"format": kind, "accuracy": correct / count, "interval": wilson_interval(correct, count),
                              "correct": correct, "right": correct, "questions": count}  # right: as in 0.1
    result |= {"perplexity": exp_mean(nats, count)} if kind == "lambada" else {"chance": chance / count}
    return {**result, "unknown": unknown, "cut": truncated, "seconds": seconds}


def read_cloze_items(path: str | Path, kind: str = "auto") -> tuple[str, list[ClozeItem]]:
    """The items of a file and its format, which `auto` detects."""
    if kind not in ("auto", *FORMATS):
        raise UserError(f'--format is "{kind}"; choose auto, {" or ".join(FORMATS)}.{did_you_mean(kind, FORMATS)}')
    files = list_files([path])
    if len(files) != 1:
        raise UserError(f"{path} is {len(files)} files; name one.")
    name, text = display_name(files[0]), "".join(read_text(files[0], choice=False))
    if not text.strip():
        raise UserError(f"{name} is empty; it should hold passages or questions.")
    if text.lstrip().startswith("{"):
        table = json_table(name, text)
        kind = ("cbt" if "candidates" in table.columns else "lambada") if kind == "auto" else kind
        parsed = _cbt_json_items(table) if kind == "cbt" else _lambada_json_items(table)
    else:
        kind = ("cbt" if BLANK in text and re.match(r"\s*1\s", text) else "lambada") if kind == "auto" else kind
        parsed = _cbt_items(text) if kind == "cbt" else _lambada_items(text)
    items, problems = [], []
    for item in parsed:
        items.append(item) if isinstance(item, ClozeItem) else problems.append(item)
    if problems:
        raise UserError(f"{name} has {pluralize(len(problems), 'line')} that cannot be read as {kind}",
                        first_problems([(f"line {line}", problem) for line, problem in problems]))
    if not items:
        raise UserError(f"{name} has no question in it; the last line of each should hold {BLANK}, the answer and the "
                        "candidates.")
    return kind, items


Problem = tuple[int, str]


def _lambada_items(text: str) -> Iterator[ClozeItem | Problem]:
    for line_number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _last_word_item(line, line_number)


def _lambada_json_items(table: Table) -> Iterator[ClozeItem | Problem]:
    for row, line in zip(table.rows, table.lines, strict=True):
        text = row.get("text")
        yield _last_word_item(text, line) if isinstance(text, str) else (line, 'has no "text"')


def _last_word_item(passage: str, line: int) -> ClozeItem | Problem:
    """The last word and the space before it, since most vocabularies mark the beginning of a word by that space."""
    passage = passage.rstrip()
    words = passage.split()
    if len(words) < 2:
        return line, "is one word, with nothing before it to predict it from"
    context = passage[:-len(words[-1])].rstrip()
    return ClozeItem(context, (passage[len(context):],), 0, line)


def _cbt_items(text: str) -> Iterator[ClozeItem | Problem]:
    """Numbered sentences. The one with the blank ends an item: sentence, answer, candidates, in columns."""
    sentences: list[str] = []
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            sentences = []
            continue
        match = NUMBERED_LINE.fullmatch(line.strip())
        if match is None:
            yield line_number, "does not begin with a number"
            continue
        if match[1] == "1":
            sentences = []
        cells = [cell.strip() for cell in match[2].split("\t") if cell.strip()]
        if len(cells) == 1 and BLANK not in cells[0]:
            sentences.append(cells[0])
        elif len(cells) != 3:
            yield line_number, f"should hold a sentence with {BLANK}, the answer and the candidates, separated by tabs"
        else:
            yield _cbt_item(" ".join(sentences), cells[0], cells[1], cells[2].split("|"), line_number)
            sentences = []


def _cbt_json_items(table: Table) -> Iterator[ClozeItem | Problem]:
    for row, line in zip(table.rows, table.lines, strict=True):
        missing = [key for key in ("context", "question", "answer", "candidates") if key not in row]
        context = row.get("context")
        if missing:
            yield line, f"has no {', '.join(missing)}"
        elif not isinstance(row["candidates"], list):
            yield line, "candidates should be a list"
        else:
            sentences = " ".join(map(str, context)) if isinstance(context, list) else str(context)
            yield _cbt_item(sentences, str(row["question"]), str(row["answer"]), [*map(str, row["candidates"])], line)


def _cbt_item(sentences: str, sentence: str, answer: str, candidates: Sequence[str], line: int) -> ClozeItem | Problem:
    if sentence.count(BLANK) != 1:
        return line, f"should hold {BLANK} once"
    if answer not in candidates:
        return line, f'the answer "{answer}" is not among the candidates'
    text = f"{sentences} {sentence}".strip()
    before_blank, after_blank = text.split(BLANK)
    context = before_blank.rstrip()
    return ClozeItem(context, tuple(before_blank[len(context):] + word + after_blank for word in candidates),
                     candidates.index(answer), line)
