"""Translation: what `stemma translate` and `stemma.translate` do, for any sequence-to-sequence model.

    for translation in stemma.translate("run", ["A man rides a horse.", "Two dogs play."], beams=5):
        print(translation.text)

As in the Transformer paper (arXiv:1706.03762, section 6.1): beam search with a length penalty and a maximum length that
depends on the source. Lines are batched by length and returned in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stemma.corpus.translation_direction import DirectionDetector, read_directions
from stemma.device import choose_device
from stemma.errors import MAX_PROBLEMS_SHOWN, UserError, first_problems
from stemma.exchange.load import load, resolve_model_folder
from stemma.generation.decoding_mode import DecodingSpec, decoding_spec
from stemma.generation.generate import Completion, GenerationJob
from stemma.generation.options import TranslationOptions
from stemma.model import Model
from stemma.progress import progress_stage

logger = logging.getLogger(__name__)

OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class Hypothesis:
    text: str = ""
    tokens: tuple[int, ...] = ()  # with the end token
    log_probability: float = 0.0


@dataclass(frozen=True)
class TranslationResult(Hypothesis):
    source: str = ""
    alternatives: tuple[Hypothesis, ...] = ()  # the next best, with n_best > 1


def translate(model: Model | str | Path, lines: str | Sequence[str], *, directions: DirectionDetector | None = None,
              line_names: Sequence[str] | None = None,
              on_progress: OnProgress = lambda lines: None, **choices: object) -> list[TranslationResult]:
    """A translation for each line, in order; that of an empty line is empty. `choices` are the fields of
    `TranslationOptions`, `line_names` are for messages, and `on_progress` gets the number of lines that are done."""
    options = TranslationOptions(**choices)  # type: ignore[arg-type]
    if not isinstance(model, Model):
        folder = resolve_model_folder(model)
        model, directions = load(folder, choose_device()), directions or read_directions(folder)
    lines = [lines] if isinstance(lines, str) else list(lines)
    names = line_names or [f"line {number}" for number in range(1, len(lines) + 1)]
    spec = require_seq2seq(model)
    sources = _encode_lines(model, spec, lines, names, options, directions)
    results: list[TranslationResult] = [TranslationResult(source=line) for line in lines]
    on_progress(len(lines) - len(sources))
    if not sources:
        return results
    rows, line_indices = list(sources.values()), list(sources)
    limits = [options.max_new_tokens(len(row)) for row in rows]
    job = GenerationJob(model, rows, options.generation_options(limits), limits)
    with progress_stage("translating", len(rows), "lines") as work:
        for batch in job.batches():
            hypotheses: dict[int, list[Hypothesis]] = {}
            for completion in job.complete(batch):
                hypotheses.setdefault(line_indices[completion.prompt_index], []).append(_to_hypothesis(completion))
            for index, (first, *alternatives) in hypotheses.items():
                results[index] = TranslationResult(first.text, first.tokens, first.log_probability, lines[index],
                                                   tuple(alternatives))
            on_progress(len(batch))
            work.advance(len(batch))
    return results


def require_seq2seq(model: Model) -> DecodingSpec:
    """The model's decoding spec; refuses a model that is not sequence to sequence."""
    spec = decoding_spec(model)
    if spec is None or not spec.is_seq2seq:
        capability = "reads a text and does not generate one" if spec is None else \
            "continues a prompt (`stemma generate`) and does not translate a source"
        raise UserError(f"{model.recipe.label} {capability}; train a model that translates with `stemma pretrain "
                        "transformer@mini --corpus SOURCE --target TARGET --out RUN`.")
    model.lm_head()
    return spec


def _encode_lines(model: Model, spec: DecodingSpec, lines: Sequence[str], names: Sequence[str],
                  options: TranslationOptions, directions: DirectionDetector | None) -> dict[int, list[int]]:
    """The token ids of each line that is not empty, by line index."""
    tokenizer = model.require_tokenizer()
    texts = [line.strip() for line in lines]
    unprefixed = [encoding.ids for encoding in tokenizer.encode_batch(texts, special=False)]
    if empty := [name for name, row in zip(names, unprefixed, strict=True) if not row]:
        logger.warning(f"{_join_names(empty)} {'is' if len(empty) == 1 else 'are'} empty, and so "
                       f"{'is its translation' if len(empty) == 1 else 'are their translations'}.")
    if directions is not None and not options.force:
        _refuse_swapped(directions, unprefixed, names)
    prefixed = [encoding.ids for encoding in tokenizer.encode_batch([options.prefix + text for text in texts],
                                                                    special=False)] if options.prefix else unprefixed
    rows = {index: row for index, row in enumerate(prefixed) if unprefixed[index]}
    unknown = tokenizer.special_token_ids.get("unknown")
    if with_unknown := [names[index] for index, row in rows.items() if unknown in row]:
        logger.warning(f"the vocabulary lacks some characters of {_join_names(with_unknown)}; the model reads "
                       f"{tokenizer.id_to_token(unknown or 0)} there.")
    return _truncate_or_refuse(model, spec, rows, names, options)


def _refuse_swapped(directions: DirectionDetector, rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    if swapped := directions.find_swapped(rows):
        subject = f"{names[swapped[0]]} looks" if len(swapped) == 1 else \
            f"{len(swapped):,} of {len(rows):,} lines (the first is {names[swapped[0]]}) look"
        raise UserError(f"{subject} like the language that this model translates into, not like the one it translates "
                        "from; swap the two, or insist with --force.")


def _truncate_or_refuse(model: Model, spec: DecodingSpec, rows: dict[int, list[int]], names: Sequence[str],
                        options: TranslationOptions) -> dict[int, list[int]]:
    """Truncate rows that are too long with `crop`; otherwise refuse them."""
    limit = spec.max_prompt_tokens
    long = [] if limit is None else [index for index, row in rows.items() if len(row) > limit]
    if not long:
        return rows
    if not options.crop:
        problems = [(names[index], f"{len(rows[index]):,} tokens") for index in long]
        advice = f"{model.recipe.label} reads at most {limit:,} tokens; shorten or split it, or cut it off with --crop"
        if len(long) == 1:
            raise UserError(f"{names[long[0]]} is {len(rows[long[0]]):,} tokens long and {advice}.")
        raise UserError(f"{len(long):,} sources are too long: {advice}", first_problems(problems))
    logger.warning(f"{_join_names([names[index] for index in long])} {'was' if len(long) == 1 else 'were'} truncated "
                   f"to {limit:,} tokens.")
    return {index: row[:limit] for index, row in rows.items()}


def _join_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    ellipsis = ", ..." if len(names) > MAX_PROBLEMS_SHOWN else ""
    return f"{len(names):,} lines ({', '.join(names[:MAX_PROBLEMS_SHOWN])}{ellipsis})"


def _to_hypothesis(completion: Completion) -> Hypothesis:
    """A translation is a new text: strip the space that a continuation would begin with."""
    return Hypothesis(completion.text.strip(), completion.tokens, completion.log_probability)
