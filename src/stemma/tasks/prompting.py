"""A task shown in the prompt instead of learnt: zero, one or a few solved examples, then the question, and no gradient
(GPT-3, arXiv:2005.14165, section 2.4).

For each row its own examples are drawn. Among given answers the likeliest is taken, as it is or divided by its length,
or by its probability without the question; an open question is answered word by word and compared.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stemma.errors import UserError, counted
from stemma.exchange.model import Model
from stemma.generation.generate import generate
from stemma.generation.score import score_continuations
from stemma.generation.windows import TextReader
from stemma.notes import silenced
from stemma.tasks.answers import exact_match, f1
from stemma.tasks.proportions import macro_f1, majority, wilson
from stemma.tasks.template import ANSWER_CONTEXT, Choice, Classify, Example, Question, Scored, Template

logger = logging.getLogger(__name__)

CHUNK = 64  # rows asked at a time
Watch = Callable[[int], None]


@dataclass(frozen=True)
class Asked:
    """A row with the examples that stand before it."""

    example: Example
    shots: tuple[Example, ...]

    def prompt(self, template: Template) -> str:
        parts = [*([template.instruction] if template.instruction else []), *(shot.solved for shot in self.shots),
                 self.example.text]
        return template.separator.join(parts)


def prompt(model: Model, template: Template, rows: Sequence[Example], pool: Sequence[Example] | None = None,
           shots: int = 0, seed: int = 0, limit: int | None = None, length: int | None = None,
           watch: Watch = lambda rows: None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What came out, and the answer to each of the first `limit` rows. Examples come from `pool`, or else from the
    other rows."""
    reader = TextReader(model, length)
    model.needs_tokenizer()
    if reader.backward:
        raise UserError(f"{model.recipe.label} reads texts from their end, so it cannot say how a prompt goes on; use "
                        "a model that reads forwards.")
    drawn = _draw(rows, pool, shots, seed)[:limit]
    asked, dropped, skipped = _fit(reader, template, drawn)
    if not asked:
        raise UserError(f"every one of the {len(drawn):,} prompts is longer than the {reader.length} tokens that "
                        f"{model.recipe.label} reads at a time, even without examples; shorten the template.")
    if dropped:
        logger.warning(
            f"{dropped:,} of {len(drawn):,} prompts were too long for {reader.length} tokens and lost examples from "
            "their front.")
    if skipped:
        logger.warning(
            f"{len(skipped):,} of {len(drawn):,} rows do not fit into {reader.length} tokens even without examples "
            f"and were left out (line {', '.join(map(str, skipped[:8]))}{', ...' if len(skipped) > 8 else ''}).")
    began = time.perf_counter()
    answer = _write if isinstance(template, Question) else _choose
    predictions = answer(reader, template, asked, watch)
    seconds = time.perf_counter() - began
    measures = _written if isinstance(template, Question) else _chosen
    counts = {"kind": template.kind, "rows": len(asked), "shots": shots,
              "mean_shots": sum(len(one.shots) for one in asked) / len(asked), "cut": dropped, "skipped": len(skipped)}
    return {**measures(template, asked, predictions), **counts, "example": asked[0].prompt(template),
            "seconds": seconds, "rows_per_second": len(asked) / max(seconds, 1e-9)}, predictions


def _draw(rows: Sequence[Example], pool: Sequence[Example] | None, shots: int, seed: int) -> list[Asked]:
    """Each row's own examples, by the seed and its place alone: `--limit` does not change them."""
    if shots < 0:
        raise UserError(f"--shots must be 0 or more, not {shots}.")
    source, least = (rows, shots + 1) if pool is None else (pool, shots)
    if shots and len(source) < least:
        raise UserError(f"{counted(shots, 'example')} before each row need {least} rows to draw from, and there are "
                        f"{len(source)}; ask for fewer with --shots, or name another file with --examples.")
    asked = []
    for number, row in enumerate(rows):
        chosen: list[int] = []
        if shots:
            order = np.random.default_rng([seed, number]).permutation(len(source))
            chosen = [int(other) for other in order[:shots + 1] if pool is not None or other != number][:shots]
        asked.append(Asked(row, tuple(source[other] for other in chosen)))
    return asked


def _fit(reader: TextReader, template: Template, asked: list[Asked]) -> tuple[list[Asked], int, list[int]]:
    """Examples go from the front until a prompt and its answer fit; how many lost some, and which rows never fit."""
    tokenizer = reader.model.needs_tokenizer()
    waiting = dict(enumerate(asked if not reader.remembers else []))  # a memory has no end
    result = dict(enumerate(asked))
    skipped: list[int] = []
    while waiting:
        texts, owners = [], []
        for number, one in waiting.items():
            answers = ("",) if isinstance(template, Question) else one.example.answers
            texts += [one.prompt(template) + text for text in answers]
            owners += [number] * len(answers)
        room = dict.fromkeys(waiting, reader.length + 1 - (reader.start is not None))
        if isinstance(template, Question):
            room = {number: most - template.tokens for number, most in room.items()}
        long = {number for number, encoding in zip(owners, tokenizer.encode_batch(texts, special=False), strict=True)
                if len(encoding.ids) > room[number]}
        waiting = {}
        for number in sorted(long):
            if result[number].shots:
                waiting[number] = result[number] = replace(result[number], shots=result[number].shots[1:])
            else:
                skipped.append(result.pop(number).example.line)
    dropped = sum(len(result[number].shots) < len(asked[number].shots) for number in result)
    return list(result.values()), dropped, skipped


def _choose(reader: TextReader, template: Template, asked: Sequence[Asked], watch: Watch) -> list[dict[str, Any]]:
    assert isinstance(template, Scored)
    alone: dict[str, float] = {}
    if template.normalization == "unconditional":
        distinct = list(dict.fromkeys(text for one in asked for text in one.example.answers))
        before = template.answer_context if template.answer_context is not None else ANSWER_CONTEXT
        scores = score_continuations(reader, [before] * len(distinct), distinct)
        alone = {text: score.log_probability for text, score in zip(distinct, scores, strict=True)}
    predictions = []
    for start in range(0, len(asked), CHUNK):
        chunk = asked[start:start + CHUNK]
        prompts = [one.prompt(template) for one in chunk for _ in one.example.answers]
        found = iter(score_continuations(reader, prompts, [text for one in chunk for text in one.example.answers]))
        for one in chunk:
            values = []
            for text in one.example.answers:
                score = next(found)
                size = {"length": score.tokens, "byte": len(text.encode())}.get(template.normalization, 1)
                values.append(score.log_probability / size - alone.get(text, 0.0))
            names = list(template.labels) if isinstance(template, Classify) else list(one.example.answers)
            best = values.index(max(values))
            predictions.append({"line": one.example.line, "label": names[one.example.right], "prediction": names[best],
                                "right": best == one.example.right, "scores": values, "choice": best})
        watch(len(chunk))
    return predictions


def _chosen(template: Template, asked: Sequence[Asked], predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, right = len(predictions), sum(one["right"] for one in predictions)
    result: dict[str, Any] = {"accuracy": right / count, "interval": wilson(right, count)}
    if isinstance(template, Classify):
        labels, guesses = ([one[key] for one in predictions] for key in ("label", "prediction"))
        said, true = Counter(guesses), Counter(labels)
        both = Counter(one["label"] for one in predictions if one["right"])
        result |= {"macro_f1": macro_f1(labels, guesses), "majority": majority(labels),
                   "labels": {label: {"count": true[label], "predicted": said[label], "right": both[label]}
                              for label in template.labels}}
    if isinstance(template, Choice):
        result |= {"chance": sum(1 / len(one.example.answers) for one in asked) / count,
                   "majority": majority([str(one.example.right) for one in asked])}
    assert isinstance(template, Scored)
    return {**result, "normalization": template.normalization}


def _write(reader: TextReader, template: Template, asked: Sequence[Asked], watch: Watch) -> list[dict[str, Any]]:
    assert isinstance(template, Question)
    tokenizer = reader.model.needs_tokenizer()
    prompts = [reader.lay(np.array(tokenizer.encode(one.prompt(template), special=False).ids)).tolist()
               for one in asked]
    order = sorted(range(len(asked)), key=lambda number: len(prompts[number]))  # like lengths are written together
    said: dict[int, str] = {}
    for start in range(0, len(order), CHUNK):
        chunk = order[start:start + CHUNK]
        with silenced():
            written = generate(reader.model, [prompts[number] for number in chunk], tokens=template.tokens, greedy=True,
                               stop=tuple(template.stop))
        for one in written:
            said[chunk[one.prompt]] = one.text.strip()
        watch(len(chunk))
    return [{"line": one.example.line, "answers": [answer.strip() for answer in one.example.answers],
             "prediction": said[number], "right": exact_match(said[number], one.example.answers),
             "f1": f1(said[number], one.example.answers)} for number, one in enumerate(asked)]


def _written(template: Template, asked: Sequence[Asked], predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, right = len(predictions), sum(one["right"] for one in predictions)
    return {"exact_match": right / count, "interval": wilson(right, count),
            "f1": sum(one["f1"] for one in predictions) / count}
