"""Zero-shot, one-shot and few-shot prompting (GPT-3, arXiv:2005.14165, section 2.4): examples, then the question.

Every row gets its own sampled examples. Of several answers the most probable one is the prediction; its log-probability
can be normalized by length, or by its probability without the question. Open answers are generated and compared.
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

CHUNK = 64  # rows scored at a time
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class FewShotPrompt:
    """A row and the solved examples before it."""

    example: PromptExample
    shots: tuple[PromptExample, ...]

    def to_text(self, template: PromptTemplate) -> str:
        parts = [*([template.instruction] if template.instruction else []), *(shot.with_answer for shot in self.shots),
                 self.example.text]
        return template.separator.join(parts)


def run_few_shot(model: Model, template: PromptTemplate, rows: Sequence[PromptExample],
                 pool: Sequence[PromptExample] | None = None, shots: int = 0, seed: int = 0,
                 limit: int | None = None, length: int | None = None,
                 on_progress: OnProgress = lambda rows: None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics, and the prediction for each of the first `limit` rows. Examples are sampled from `pool`, or from the
    other rows."""
    scorer = LMScorer(model, length)
    model.require_tokenizer()
    if scorer.right_to_left:
        raise UserError(f"{model.recipe.label} reads texts from their end, so it cannot say how a prompt goes on; use "
                        "a model that reads forwards.")
    sampled = _sample_shots(rows, pool, shots, seed)[:limit]
    prompts, dropped, skipped = _fit_context(scorer, template, sampled)
    if not prompts:
        raise UserError(f"every one of the {len(sampled):,} prompts is longer than the {scorer.length} tokens that "
                        f"{model.recipe.label} reads at a time, even without examples; shorten the template.")
    if dropped:
        logger.warning(
            f"{dropped:,} of {len(sampled):,} prompts were too long for {scorer.length} tokens and lost examples from "
            "their front.")
    if skipped:
        logger.warning(
            f"{len(skipped):,} of {len(sampled):,} rows do not fit into {scorer.length} tokens even without examples "
            f"and were left out (line {', '.join(map(str, skipped[:8]))}{', ...' if len(skipped) > 8 else ''}).")
    start_time = time.perf_counter()
    predict = _generate_answers if isinstance(template, GenerationTemplate) else _score_choices
    predictions = predict(scorer, template, prompts, on_progress)
    seconds = time.perf_counter() - start_time
    metrics = _generation_metrics if isinstance(template, GenerationTemplate) else _choice_metrics
    counts = {"kind": template.kind, "rows": len(prompts), "shots": shots,
              "mean_shots": sum(len(prompt.shots) for prompt in prompts) / len(prompts), "cut": dropped,
              "skipped": len(skipped)}
    return {**metrics(template, prompts, predictions), **counts, "example": prompts[0].to_text(template),
            "seconds": seconds, "rows_per_second": len(prompts) / max(seconds, 1e-9)}, predictions


def _sample_shots(rows: Sequence[PromptExample], pool: Sequence[PromptExample] | None, shots: int,
                  seed: int) -> list[FewShotPrompt]:
    """Sample examples for each row. They depend on the seed and the row index alone: `--limit` does not change them."""
    if shots < 0:
        raise UserError(f"--shots must be 0 or more, not {shots}.")
    source, minimum = (rows, shots + 1) if pool is None else (pool, shots)
    if shots and len(source) < minimum:
        raise UserError(f"{pluralize(shots, 'example')} before each row need {minimum} rows to draw from, and there "
                        f"are {len(source)}; ask for fewer with --shots, or name another file with --examples.")
    prompts = []
    for index, row in enumerate(rows):
        sampled: list[int] = []
        if shots:
            order = np.random.default_rng([seed, index]).permutation(len(source))
            others = order if pool is not None else order[order != index]
            sampled = others[:shots].tolist()
        prompts.append(FewShotPrompt(row, tuple(source[shot_index] for shot_index in sampled)))
    return prompts


def _fit_context(scorer: LMScorer, template: PromptTemplate,
                 few_shot_prompts: list[FewShotPrompt]) -> tuple[list[FewShotPrompt], int, list[int]]:
    """Drop examples from the front until prompt and answer fit. Returns the prompts, how many of them lost examples,
    and the lines of rows that do not fit at all."""
    tokenizer = scorer.model.require_tokenizer()
    unchecked = dict(enumerate(few_shot_prompts if not scorer.has_memory else []))  # a memory has no length limit
    prompts = dict(enumerate(few_shot_prompts))
    skipped: list[int] = []
    max_tokens = scorer.length + 1 - (scorer.bos_id is not None)
    if isinstance(template, GenerationTemplate):
        max_tokens -= template.tokens
    while unchecked:
        texts, prompt_indices = [], []
        for index, prompt in unchecked.items():
            answers = ("",) if isinstance(template, GenerationTemplate) else prompt.example.answers
            texts += [prompt.to_text(template) + text for text in answers]
            prompt_indices += [index] * len(answers)
        encodings = tokenizer.encode_batch(texts, special=False)
        too_long = {index for index, encoding in zip(prompt_indices, encodings, strict=True)
                    if len(encoding.ids) > max_tokens}
        unchecked = {}
        for index in sorted(too_long):
            if prompts[index].shots:
                unchecked[index] = prompts[index] = replace(prompts[index], shots=prompts[index].shots[1:])
            else:
                skipped.append(prompts.pop(index).example.line)
    dropped = sum(len(prompt.shots) < len(few_shot_prompts[index].shots) for index, prompt in prompts.items())
    return list(prompts.values()), dropped, skipped


def _score_choices(scorer: LMScorer, template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                   on_progress: OnProgress) -> list[dict[str, Any]]:
    assert isinstance(template, LikelihoodTemplate)
    unconditional: dict[str, float] = {}  # log-probability of each answer without the question
    if template.normalization == "unconditional":
        distinct = list(dict.fromkeys(text for prompt in few_shot_prompts for text in prompt.example.answers))
        context = template.answer_context if template.answer_context is not None else ANSWER_CONTEXT
        scores = score_continuations(scorer, [context] * len(distinct), distinct)
        unconditional = {text: score.log_probability for text, score in zip(distinct, scores, strict=True)}
    predictions = []
    for start in range(0, len(few_shot_prompts), CHUNK):
        chunk = few_shot_prompts[start:start + CHUNK]
        contexts = [prompt.to_text(template) for prompt in chunk for _ in prompt.example.answers]
        all_scores = iter(score_continuations(scorer, contexts,
                                              [text for prompt in chunk for text in prompt.example.answers]))
        for example in (prompt.example for prompt in chunk):
            values = []
            for text in example.answers:
                score = next(all_scores)
                size = {"length": score.num_tokens, "byte": len(text.encode())}.get(template.normalization, 1)
                values.append(score.log_probability / size - unconditional.get(text, 0.0))
            names = list(template.labels) if isinstance(template, ClassificationTemplate) else list(example.answers)
            best = values.index(max(values))
            correct = best == example.gold_index
            predictions.append({"line": example.line, "label": names[example.gold_index], "prediction": names[best],
                                "correct": correct, "right": correct, "scores": values, "choice": best})
        on_progress(len(chunk))
    return predictions


def _choice_metrics(template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                    predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, num_correct = len(predictions), sum(row["correct"] for row in predictions)
    result: dict[str, Any] = {"accuracy": num_correct / count, "interval": wilson_interval(num_correct, count)}
    if isinstance(template, ClassificationTemplate):
        gold, predicted = ([row[key] for row in predictions] for key in ("label", "prediction"))
        predicted_counts, gold_counts = Counter(predicted), Counter(gold)
        correct_counts = Counter(row["label"] for row in predictions if row["correct"])
        result |= {"macro_f1": label_macro_f1(gold, predicted), "majority": majority_baseline(gold),
                   "labels": {label: {"count": gold_counts[label], "predicted": predicted_counts[label],
                                      "correct": correct_counts[label], "right": correct_counts[label]}
                              for label in template.labels}}
    if isinstance(template, MultipleChoiceTemplate):
        result |= {"chance": sum(1 / len(prompt.example.answers) for prompt in few_shot_prompts) / count,
                   "majority": majority_baseline([str(prompt.example.gold_index) for prompt in few_shot_prompts])}
    assert isinstance(template, LikelihoodTemplate)
    return {**result, "normalization": template.normalization}


def _generate_answers(scorer: LMScorer, template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                      on_progress: OnProgress) -> list[dict[str, Any]]:
    assert isinstance(template, GenerationTemplate)
    tokenizer = scorer.model.require_tokenizer()
    prompts = [scorer.with_bos(np.array(tokenizer.encode(prompt.to_text(template), special=False).ids)).tolist()
               for prompt in few_shot_prompts]
    order = sorted(range(len(few_shot_prompts)), key=lambda index: len(prompts[index]))  # batches of similar length
    predicted: dict[int, str] = {}
    for start in range(0, len(order), CHUNK):
        chunk = order[start:start + CHUNK]
        with silenced():
            completions = generate(scorer.model, [prompts[index] for index in chunk], tokens=template.tokens,
                                   greedy=True, stop=tuple(template.stop))
        for completion in completions:
            predicted[chunk[completion.prompt_index]] = completion.text.strip()
        on_progress(len(chunk))
    matches = [exact_match(predicted[index], prompt.example.answers) for index, prompt in enumerate(few_shot_prompts)]
    return [{"line": prompt.example.line, "answers": [answer.strip() for answer in prompt.example.answers],
             "prediction": predicted[index], "correct": matches[index], "right": matches[index],  # right: as in 0.1
             "f1": token_f1(predicted[index], prompt.example.answers)} for index, prompt in enumerate(few_shot_prompts)]


def _generation_metrics(template: PromptTemplate, few_shot_prompts: Sequence[FewShotPrompt],
                        predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count, num_correct = len(predictions), sum(row["correct"] for row in predictions)
    return {"exact_match": num_correct / count, "interval": wilson_interval(num_correct, count),
            "f1": sum(row["f1"] for row in predictions) / count}
