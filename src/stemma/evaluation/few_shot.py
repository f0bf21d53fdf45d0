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

from stemma.errors import UserError, pluralize
from stemma.evaluation.accuracy import label_macro_f1, majority_baseline, wilson_interval
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.lm_scorer import LMScorer
from stemma.generation.generate import generate
from stemma.model import Model
from stemma.notes import silenced
from stemma.tasks.metrics.squad import exact_match, token_f1
from stemma.tasks.prompt_template import (
    ANSWER_CONTEXT,
    ClassificationTemplate,
    GenerationTemplate,
    LikelihoodTemplate,
    MultipleChoiceTemplate,
    PromptExample,
    PromptTemplate,
)

logger = logging.getLogger(__name__)

CHUNK = 64  # rows asked at a time
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class FewShotPrompt:
    """A row with the examples that stand before it."""

    example: PromptExample
    shots: tuple[PromptExample, ...]

    def to_text(self, template: PromptTemplate) -> str:
        parts = [*([template.instruction] if template.instruction else []), *(shot.with_answer for shot in self.shots),
                 self.example.text]
        return template.separator.join(parts)


def run_few_shot(model: Model, template: PromptTemplate, rows: Sequence[PromptExample],
                 pool: Sequence[PromptExample] | None = None,
           shots: int = 0, seed: int = 0, limit: int | None = None, length: int | None = None,
           on_progress: OnProgress = lambda rows: None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What came out, and the answer to each of the first `limit` rows. Examples come from `pool`, or else from the
    other rows."""
    reader = LMScorer(model, length)
    model.require_tokenizer()
    if reader.right_to_left:
        raise UserError(f"{model.recipe.label} reads texts from their end, so it cannot say how a prompt goes on; use "
                        "a model that reads forwards.")
    drawn = _sample_shots(rows, pool, shots, seed)[:limit]
    asked, dropped, skipped = _fit_context(reader, template, drawn)
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
    answer = _generate_answers if isinstance(template, GenerationTemplate) else _score_choices
    predictions = answer(reader, template, asked, on_progress)
    seconds = time.perf_counter() - began
    measures = _generation_metrics if isinstance(template, GenerationTemplate) else _choice_metrics
    counts = {"kind": template.kind, "rows": len(asked), "shots": shots,
              "mean_shots": sum(len(one.shots) for one in asked) / len(asked), "cut": dropped, "skipped": len(skipped)}
    return {**measures(template, asked, predictions), **counts, "example": asked[0].to_text(template),
            "seconds": seconds, "rows_per_second": len(asked) / max(seconds, 1e-9)}, predictions


def _sample_shots(rows: Sequence[PromptExample], pool: Sequence[PromptExample] | None, shots: int,
                  seed: int) -> list[FewShotPrompt]:
    """Each row's own examples, by the seed and its place alone: `--limit` does not change them."""
    if shots < 0:
        raise UserError(f"--shots must be 0 or more, not {shots}.")
    source, least = (rows, shots + 1) if pool is None else (pool, shots)
    if shots and len(source) < least:
        raise UserError(f"{pluralize(shots, 'example')} before each row need {least} rows to draw from, and there are "
                        f"{len(source)}; ask for fewer with --shots, or name another file with --examples.")
    asked = []
    for number, row in enumerate(rows):
        chosen: list[int] = []
        if shots:
            order = np.random.default_rng([seed, number]).permutation(len(source))
            chosen = [int(other) for other in order[:shots + 1] if pool is not None or other != number][:shots]
        asked.append(FewShotPrompt(row, tuple(source[other] for other in chosen)))
    return asked


def _fit_context(scorer: LMScorer, template: PromptTemplate,
                 few_shot_prompts: list[FewShotPrompt]) -> tuple[list[FewShotPrompt], int, list[int]]:
    """Examples go from the front until a prompt and its answer fit; how many lost some, and which rows never fit."""
    tokenizer = scorer.model.require_tokenizer()
    waiting = dict(enumerate(few_shot_prompts if not scorer.has_memory else []))  # a memory has no end
    result = dict(enumerate(few_shot_prompts))
    skipped: list[int] = []
    while waiting:
        texts, owners = [], []
        for number, one in waiting.items():
            answers = ("",) if isinstance(template, GenerationTemplate) else one.example.answers
            texts += [one.to_text(template) + text for text in answers]
            owners += [number] * len(answers)
        room = dict.fromkeys(waiting, scorer.length + 1 - (scorer.bos_id is not None))
        if isinstance(template, GenerationTemplate):
            room = {number: most - template.tokens for number, most in room.items()}
        long = {number for number, encoding in zip(owners, tokenizer.encode_batch(texts, special=False), strict=True)
                if len(encoding.ids) > room[number]}
        waiting = {}
        for number in sorted(long):
            if result[number].shots:
                waiting[number] = result[number] = replace(result[number], shots=result[number].shots[1:])
            else:
                skipped.append(result.pop(number).example.line)
    dropped = sum(len(result[number].shots) < len(few_shot_prompts[number].shots) for number in result)
    return list(result.values()), dropped, skipped


def _score_choices(scorer: LMScorer, template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                   on_progress: OnProgress) -> list[dict[str, Any]]:
    assert isinstance(template, LikelihoodTemplate)
    alone: dict[str, float] = {}
    if template.normalization == "unconditional":
        distinct = list(dict.fromkeys(text for one in few_shot_prompts for text in one.example.answers))
        before = template.answer_context if template.answer_context is not None else ANSWER_CONTEXT
        scores = score_continuations(scorer, [before] * len(distinct), distinct)
        alone = {text: score.log_probability for text, score in zip(distinct, scores, strict=True)}
    predictions = []
    for start in range(0, len(few_shot_prompts), CHUNK):
        chunk = few_shot_prompts[start:start + CHUNK]
        prompts = [one.to_text(template) for one in chunk for _ in one.example.answers]
        found = iter(score_continuations(scorer, prompts, [text for one in chunk for text in one.example.answers]))
        for one in chunk:
            values = []
            for text in one.example.answers:
                score = next(found)
                size = {"length": score.num_tokens, "byte": len(text.encode())}.get(template.normalization, 1)
                values.append(score.log_probability / size - alone.get(text, 0.0))
            names = list(template.labels) if isinstance(template, ClassificationTemplate) else list(one.example.answers)
            best = values.index(max(values))
            predictions.append({"line": one.example.line, "label": names[one.example.gold_index],
                                "prediction": names[best],
                                "right": best == one.example.gold_index, "scores": values, "choice": best})
        on_progress(len(chunk))
    return predictions


def _choice_metrics(template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                    predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, num_correct = len(predictions), sum(one["right"] for one in predictions)
    result: dict[str, Any] = {"accuracy": num_correct / count, "interval": wilson_interval(num_correct, count)}
    if isinstance(template, ClassificationTemplate):
        labels, guesses = ([one[key] for one in predictions] for key in ("label", "prediction"))
        predicted_counts, gold_counts = Counter(guesses), Counter(labels)
        correct_counts = Counter(one["label"] for one in predictions if one["right"])
        result |= {"macro_f1": label_macro_f1(labels, guesses), "majority": majority_baseline(labels),
                   "labels": {label: {"count": gold_counts[label], "predicted": predicted_counts[label],
                                      "right": correct_counts[label]}
                              for label in template.labels}}
    if isinstance(template, MultipleChoiceTemplate):
        result |= {"chance": sum(1 / len(one.example.answers) for one in few_shot_prompts) / count,
                   "majority": majority_baseline([str(one.example.gold_index) for one in few_shot_prompts])}
    assert isinstance(template, LikelihoodTemplate)
    return {**result, "normalization": template.normalization}


def _generate_answers(scorer: LMScorer, template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                      on_progress: OnProgress) -> list[dict[str, Any]]:
    assert isinstance(template, GenerationTemplate)
    tokenizer = scorer.model.require_tokenizer()
    prompts = [scorer.with_bos(np.array(tokenizer.encode(one.to_text(template), special=False).ids)).tolist()
               for one in few_shot_prompts]
    # like lengths are written together
    order = sorted(range(len(few_shot_prompts)), key=lambda number: len(prompts[number]))
    predicted: dict[int, str] = {}
    for start in range(0, len(order), CHUNK):
        chunk = order[start:start + CHUNK]
        with silenced():
            written = generate(scorer.model, [prompts[number] for number in chunk], tokens=template.tokens, greedy=True,
                               stop=tuple(template.stop))
        for one in written:
            predicted[chunk[one.prompt_index]] = one.text.strip()
        on_progress(len(chunk))
    return [{"line": one.example.line, "answers": [answer.strip() for answer in one.example.answers],
             "prediction": predicted[number], "right": exact_match(predicted[number], one.example.answers),
             "f1": token_f1(predicted[number], one.example.answers)} for number, one in enumerate(few_shot_prompts)]


def _generation_metrics(template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                        predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, num_correct = len(predictions), sum(one["right"] for one in predictions)
    return {"exact_match": num_correct / count, "interval": wilson_interval(num_correct, count),
            "f1": sum(one["f1"] for one in predictions) / count}
