"""Entity-level precision, recall and F1, as in seqeval (github.com/chakki-works/seqeval).

`precision`, `recall` and `f1` are strict: the tags of an entity must follow the scheme of the data (IOB1, IOB2, BIOES
or BILOU), which is detected from the gold tags. Some files mix two schemes (BC5CDR in SciBERT's release); tags that fit
no scheme are read as conlleval does. Tags without prefixes (parts of speech) mark no entities and only have `accuracy`.

`conll_f1` accepts an entity that begins with I-, like the conlleval script of CoNLL-2003 and seqeval's default mode.
Most published numbers, and those of the `transformers` example script, are of this kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stemma.errors import UserError, did_you_mean, first_problems
from stemma.tasks.metrics.metric import ratio_metric, safe_divide
from stemma.tasks.metrics.optional_import import optional_import

SCHEMES = ("plain", "IOB1", "IOB2", "BIOES", "BILOU", "conlleval")
LETTERS = {"IOB1": "BIO", "IOB2": "BIO", "BIOES": "BIOES", "BILOU": "BILOU"}
TAG = re.compile(r"O|[BIESLU]-.+")
Entity = tuple[str, int, int]  # type, first word, end
RATIOS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of (rounds, 3): correct, predicted and gold entities
    "precision": lambda counts: safe_divide(counts[:, 0], counts[:, 1]),
    "recall": lambda counts: safe_divide(counts[:, 0], counts[:, 2]),
    "f1": lambda counts: safe_divide(2 * counts[:, 0], counts[:, 1] + counts[:, 2])}


@dataclass(frozen=True)
class TagInputs:
    gold: list[list[str]]
    predicted: list[list[str]]
    scheme: str

    @cached_property
    def strict(self) -> np.ndarray:
        """(sentences, 3): correct, predicted and gold entities."""
        return _entity_counts(*self.entities)

    @cached_property
    def lenient(self) -> np.ndarray:
        self.check_entities()
        return _entity_counts(*(_entities_conlleval(side) for side in (self.gold, self.predicted)))

    @cached_property
    def entities(self) -> tuple[list[set[Entity]], list[set[Entity]]]:
        self.check_entities()
        if self.scheme == "conlleval":
            return _entities_conlleval(self.gold), _entities_conlleval(self.predicted)
        return _entities_by_scheme(self.gold, self.scheme), _entities_by_scheme(self.predicted, self.scheme)

    def check_entities(self) -> None:
        if self.scheme == "plain":
            raise UserError("tags without prefixes such as B- and I- mark no entities; the metric of such tags is "
                            "accuracy.")

    @cached_property
    def word_counts(self) -> np.ndarray:
        """(sentences, 2): words with the correct tag, and all words."""
        return np.array([(sum(gold == predicted for gold, predicted in zip(*tags, strict=True)), len(tags[0]))
                         for tags in zip(self.gold, self.predicted, strict=True)])


def metric_inputs(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *,
                  scheme: str | None = None) -> TagInputs:
    """Pass the `scheme` of the training tags if known: a small evaluation set may not reveal it."""
    if scheme is not None and scheme not in SCHEMES:
        raise UserError(f'no scheme "{scheme}" of tags; choose {", ".join(SCHEMES)}.{did_you_mean(scheme, SCHEMES)}')
    gold_tags, predicted_tags = [list(tags) for tags in gold], [list(tags) for tags in predicted]
    pairs = enumerate(zip(gold_tags, predicted_tags, strict=True), 1)
    problems = [("", f"sentence {index:,}: {len(gold_row):,} tags and {len(predicted_row):,} predictions")
                for index, (gold_row, predicted_row) in pairs if len(gold_row) != len(predicted_row)]
    scheme = _consistent_scheme(scheme or detect_scheme(gold_tags, predicted_tags), gold_tags)
    used = {tag for side in (gold_tags, predicted_tags) for tags in side for tag in tags if scheme != "plain"}
    problems += [("", f'"{tag}" is not a tag') for tag in sorted(used)
                 if not TAG.fullmatch(tag) or tag[0] not in LETTERS.get(scheme, tag)]
    if problems:
        raise UserError("these tags cannot be scored; each word needs one tag: O, or a prefix and a type (B-PER).",
                        first_problems(problems))
    return TagInputs(gold_tags, predicted_tags, scheme)


def detect_scheme(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]] = ()) -> str:
    """One of SCHEMES, by the prefixes that occur and the first tags of gold entities."""
    used = {tag for side in (gold, predicted) for tags in side for tag in tags} - {"O"}
    letters = {tag[0] for tag in used if TAG.fullmatch(tag)}
    if used and not letters:
        return "plain"
    if letters & {"L", "U"}:
        return "conlleval" if letters & {"E", "S"} else "BILOU"
    if letters & {"E", "S"}:
        return "BIOES"
    return "IOB2" if _consistent_scheme("IOB2", gold) == "IOB2" else _consistent_scheme("IOB1", gold)


def entity_table(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *,
                 scheme: str | None = None) -> dict[str, dict[str, float]]:
    """{type: {"precision", "recall", "f1", "support"}}, sorted by type; strict, like `f1`."""
    sides = metric_inputs(gold, predicted, scheme=scheme).entities
    table = {}
    for kind in sorted({entity[0] for side in sides for entities in side for entity in entities}):
        of_kind = ([{entity for entity in entities if entity[0] == kind} for entities in side] for side in sides)
        counts = _entity_counts(*of_kind).sum(axis=0, keepdims=True)
        table[kind] = {name: float(ratio(counts)[0]) for name, ratio in RATIOS.items()} | {"support": int(counts[0, 2])}
    return table


def _entity_counts(gold: list[set[Entity]], predicted: list[set[Entity]]) -> np.ndarray:
    return np.array([(len(a & b), len(b), len(a)) for a, b in zip(gold, predicted, strict=True)])


def _entities_by_scheme(sentences: list[list[str]], scheme: str) -> list[set[Entity]]:
    schemes = optional_import("seqeval.scheme")
    rules = getattr(schemes, {"BIOES": "IOBES"}.get(scheme, scheme))
    return [{(entity.tag, entity.start, entity.end) for entity in entities}
            for entities in schemes.Entities(sentences, rules).entities]


def _entities_conlleval(sentences: list[list[str]]) -> list[set[Entity]]:
    """seqeval's lenient mode knows the BIOES prefixes; the BILOU ones are equivalent."""
    get_entities = optional_import("seqeval.metrics.sequence_labeling").get_entities
    return [set(get_entities([{"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]))
            for tags in sentences]


def _consistent_scheme(scheme: str, gold: Sequence[Sequence[str]]) -> str:
    """The scheme, or conlleval if the gold tags violate it: I- in IOB2, and B- in IOB1, only follow their own type."""
    letter = {"IOB2": "I", "IOB1": "B"}.get(scheme)
    bigrams = {bigram for tags in gold for bigram in zip(("O", *tags), tags, strict=False)}
    violated = any(tag[:1] == letter and (previous[:1] not in "BI" or previous[1:] != tag[1:])
                   for previous, tag in bigrams)
    return "conlleval" if violated else scheme


METRICS = (
    ratio_metric("f1", "tags", "F1 of entities, strict under the scheme of the data", lambda inputs: inputs.strict,
                 RATIOS["f1"], requires="seqeval.scheme"),
    ratio_metric("precision", "tags", "fraction of the predicted entities that are correct",
                 lambda inputs: inputs.strict,
                 RATIOS["precision"], requires="seqeval.scheme"),
    ratio_metric("recall", "tags", "fraction of the gold entities that are predicted", lambda inputs: inputs.strict,
                 RATIOS["recall"], requires="seqeval.scheme"),
    ratio_metric("conll_f1", "tags", "F1 of entities as conlleval reads tags", lambda inputs: inputs.lenient,
                 RATIOS["f1"], requires="seqeval.metrics.sequence_labeling"),
    ratio_metric("accuracy", "tags", "fraction of words with the correct tag", lambda inputs: inputs.word_counts,
                 lambda sums: safe_divide(sums[:, 0], sums[:, 1])),
)
