"""Translate: what `stemma translate` and `stemma.translate` do, for any model that writes a text from a source.

    for translation in stemma.translate("run", ["A man rides a horse.", "Two dogs play."], beams=5):
        print(translation.text)

As in the Transformer paper (arXiv:1706.03762, section 6.1) by beam search with a length penalty, where a translation
has at most so many tokens more than its source. Lines of similar length go together, and come back in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stemma.corpus.directions import Directions, read_directions
from stemma.device import choose_device
from stemma.errors import UserError
from stemma.exchange.load import find_folder, load
from stemma.exchange.model import Model
from stemma.generation.generate import Completion, Job
from stemma.generation.options import TranslateOptions
from stemma.generation.ways import Scheme, scheme_of
from stemma.progress import stage

logger = logging.getLogger(__name__)

SHOWN = 8  # of many lines with the same trouble, so many are listed
Watch = Callable[[int], None]


@dataclass(frozen=True)
class Written:
    text: str = ""
    tokens: tuple[int, ...] = ()  # also the one that ended it
    log_probability: float = 0.0


@dataclass(frozen=True)
class Translation(Written):
    source: str = ""
    alternatives: tuple[Written, ...] = ()  # the next best, as many as were asked for


def translate(model: Model | str | Path, lines: str | Sequence[str], *, directions: Directions | None = None,
              where: Sequence[str] | None = None,
              watch: Watch = lambda lines: None, **choices: object) -> list[Translation]:
    """A translation for each line, in order; that of an empty line is empty. `choices` are the fields of
    `TranslateOptions`, `where` says what to call each line, and `watch` hears of lines that are done."""
    chosen = TranslateOptions(**choices)  # type: ignore[arg-type]
    if not isinstance(model, Model):
        folder = find_folder(model)
        model, directions = load(folder, choose_device()), directions or read_directions(folder)
    lines = [lines] if isinstance(lines, str) else list(lines)
    names = where or [f"line {number}" for number in range(1, len(lines) + 1)]
    scheme = check_source(model)
    sources = _read(model, scheme, lines, names, chosen, directions)
    found: list[Translation] = [Translation(source=line) for line in lines]
    watch(len(lines) - len(sources))
    if not sources:
        return found
    rows, numbers = list(sources.values()), list(sources)
    limits = [chosen.limit(len(row)) for row in rows]
    job = Job(model, rows, chosen.options(limits), limits)
    with stage("translating", len(rows), "lines") as work:
        for batch in job.batches():
            best: dict[int, list[Written]] = {}
            for completion in job.complete(batch):
                best.setdefault(numbers[completion.prompt], []).append(_written(completion))
            for number, (first, *others) in best.items():
                found[number] = Translation(first.text, first.tokens, first.log_probability, lines[number],
                                            tuple(others))
            watch(len(batch))
            work.advance(len(batch))
    return found


def check_source(model: Model) -> Scheme:
    """How the model writes from a source; one that does not is refused."""
    scheme = scheme_of(model)
    if scheme is None or not scheme.from_source:
        can = "reads a text and does not write one" if scheme is None else \
            "writes on from a prompt (`stemma generate`), not from a source"
        raise UserError(f"{model.recipe.label} {can}; train a model that translates with `stemma pretrain "
                        "transformer@mini --corpus SOURCE --target TARGET --out RUN`.")
    model.token_head()
    return scheme


def _read(model: Model, scheme: Scheme, lines: Sequence[str], names: Sequence[str], chosen: TranslateOptions,
          directions: Directions | None) -> dict[int, list[int]]:
    """The tokens of each line that has any, by its number."""
    tokenizer = model.needs_tokenizer()
    texts = [line.strip() for line in lines]
    bare = [one.ids for one in tokenizer.encode_batch(texts, special=False)]
    if empty := [name for name, row in zip(names, bare, strict=True) if not row]:
        logger.warning(f"{_listed(empty)} {'is' if len(empty) == 1 else 'are'} empty, and so "
                       f"{'is its translation' if len(empty) == 1 else 'are their translations'}.")
    if directions is not None and not chosen.force:
        _refuse_swapped(directions, bare, names)
    given = [one.ids for one in tokenizer.encode_batch([chosen.prefix + text for text in texts], special=False)] \
        if chosen.prefix else bare
    rows = {number: row for number, row in enumerate(given) if bare[number]}
    unknown = tokenizer.roles.get("unknown")
    if lacking := [names[number] for number, row in rows.items() if unknown in row]:
        logger.warning(f"the vocabulary lacks some characters of {_listed(lacking)}; the model reads "
                       f"{tokenizer.token(unknown or 0)} there.")
    return _fitting(model, scheme, rows, names, chosen)


def _refuse_swapped(directions: Directions, rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    if swapped := directions.swapped(rows):
        which = f"{names[swapped[0]]} looks" if len(swapped) == 1 else \
            f"{len(swapped):,} of {len(rows):,} lines (the first is {names[swapped[0]]}) look"
        raise UserError(f"{which} like the language that this model translates into, not like the one it translates "
                        "from; swap the two, or insist with --force.")


def _fitting(model: Model, scheme: Scheme, rows: dict[int, list[int]], names: Sequence[str],
             chosen: TranslateOptions) -> dict[int, list[int]]:
    """Rows that the model has room for: longer ones are refused, or cut."""
    most = scheme.room
    long = [] if most is None else [number for number, row in rows.items() if len(row) > most]
    if not long:
        return rows
    if not chosen.crop:
        problems = [(names[number], f"{len(rows[number]):,} tokens") for number in long[:SHOWN]]
        problems += [("", f"and {len(long) - SHOWN:,} more")] if len(long) > SHOWN else []
        advice = f"{model.recipe.label} reads at most {most:,} tokens; shorten or split it, or cut it off with --crop"
        if len(long) == 1:
            raise UserError(f"{names[long[0]]} is {len(rows[long[0]]):,} tokens long and {advice}.")
        raise UserError(f"{len(long):,} sources are too long: {advice}", problems)
    logger.warning(f"{_listed([names[number] for number in long])} {'was' if len(long) == 1 else 'were'} cut off after "
                   f"{most:,} tokens.")
    return {number: row[:most] for number, row in rows.items()}


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names):,} lines ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"


def _written(completion: Completion) -> Written:
    """A translation is a text of its own, so it does not begin with the space that parts it from its source."""
    return Written(completion.text.strip(), completion.tokens, completion.log_probability)
