"""How a model writes, in one place: which of the five ways it has learned, and what stands around the text it is given.

- next: a causal language model guesses the token after the text.
- permuted: a place behind the text asks through a second stream, and nobody sees it (XLNet, arXiv:1906.08237).
- prefix: the given text sees itself in full, what is written is read from left to right, and the next token is guessed.
  (A causal model that was fine-tuned on pairs writes like this, though it never looks ahead.)
- cloze: a mask behind the text asks what stands there, and the answer takes its place (UniLM, arXiv:1905.03197).
- decoder: an encoder reads the given text, and a decoder writes another (arXiv:1706.03762).

The first two write on from a prompt; the others write a text of its own from a source, and so does a permuted model
that was fine-tuned on pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from stemma.exchange.model import Model
from stemma.lineage import Recipe
from stemma.schema.corpus import Slot, parse_template
from stemma.schema.task import Gap, ObjectiveSettings, Way

FROM_SOURCE: tuple[Way, ...] = ("decoder", "prefix", "cloze")


def way_of(recipe: Recipe) -> Way | None:
    """None: it only reads. Of several ways, the one that was learned most directly."""
    found = _learned(recipe)
    return None if found is None else found[0]


def writes_from_source(recipe: Recipe) -> bool:
    """Whether it writes a text of its own from a source, and does not write on from a prompt."""
    found = _learned(recipe)
    return found is not None and _from_source(*found)


def gap_of(recipe: Recipe) -> Gap | None:
    """What a model is asked by to go on with a text, where it is pre-trained to fill gaps with a decoder."""
    found = _learned(recipe)
    return None if found is None or found[1].writing is None else found[1].writing.gap


def _from_source(way: Way, task: ObjectiveSettings) -> bool:
    return way in FROM_SOURCE or (task.writing is not None and task.writing.paired)


def _learned(recipe: Recipe) -> tuple[Way, ObjectiveSettings] | None:
    """Objectives say how a model writes that has learned them; learned from pairs is learned more directly."""
    tasks = [(writing, task) for task in recipe.settings.objective.values() if (writing := task.writing) is not None]
    first = min(tasks, key=lambda found: (get_args(Way).index(found[0].way), not found[0].paired), default=None)
    return None if first is None else (first[0].way, first[1])


@dataclass(frozen=True)
class Scheme:
    """A way of writing with the tokens of one vocabulary."""

    way: Way
    given: tuple[tuple[int | None, int], ...]  # token (None: the text) and segment of what is laid out for a prompt
    written: int  # the segment of what is written
    full: bool  # whether the given text sees itself in full
    begin: tuple[int, ...]  # what a decoder reads before its first own token
    ends: tuple[int, ...]  # tokens that end what is written
    mask: int | None  # what asks, if a mask does
    longest: int | None  # how many tokens are read at once; None: any number
    from_source: bool  # a text of its own is written from what is given

    @property
    def goes_on(self) -> bool:
        """Whether prompt and writing are one text."""
        return self.way in ("next", "permuted", "prefix")

    @property
    def room(self) -> int | None:
        """How long a text may be given."""
        if self.longest is None:
            return None
        return self.longest - (len(self.given) - 1) - (self.from_source and self.way != "decoder")

    def lay(self, text: Sequence[int]) -> list[int]:
        return [token for slot, _ in self.given for token in (text if slot is None else [slot])]

    def segments(self, laid: int) -> list[int] | None:
        """Of the places of a prompt of so many tokens; None: all of it, and what is written, is segment 0."""
        if not self.written and not any(segment for _, segment in self.given):
            return None
        text = laid - len(self.given) + 1
        return [segment for slot, segment in self.given for _ in range(text if slot is None else 1)]

    def limit(self, laid: int) -> int | None:
        """How many tokens can be written from a prompt of so many; None: as many as one likes."""
        if self.longest is None or not self.from_source:
            return None
        return self.longest - (len(self.begin) - 1 if self.way == "decoder" else laid)


def scheme_of(model: Model) -> Scheme | None:
    found = _learned(model.recipe)
    if found is None:
        return None
    way, task = found
    corpus = model.recipe.settings.corpus
    ends = {model.boundary} | ({model.tokenizer.roles.get("end")} if model.tokenizer is not None else set())
    slots, written, begin = [Slot("A", 0)], Slot("A", 0), []
    if _from_source(way, task):
        paired = task.writing is not None and task.writing.paired
        template = parse_template((task.pair or corpus.pair) if paired else (task.single or corpus.single))
        place = [slot.name for slot in template].index("B" if paired else "A")
        written, before, after = template[place], template[:place], template[place + 1:]
        if after:
            ends = {model.needs_tokenizer().role(after[0].name)}
        if way == "decoder":
            slots, begin = template, [Slot(corpus.decoder_start, 0), *before]
        else:
            slots = before if paired else [*before, written]
    return Scheme(way, tuple((_token(model, slot), slot.segment) for slot in slots), written.segment,
                  full=task.visibility != "causal", begin=tuple(_token(model, slot) or 0 for slot in begin),
                  ends=tuple(sorted(token for token in ends if token is not None)),
                  mask=model.needs_tokenizer().role("mask") if way == "cloze" else None, longest=longest_text(model),
                  from_source=_from_source(way, task))


def _token(model: Model, slot: Slot) -> int | None:
    return None if slot.name == "A" else model.needs_tokenizer().role(slot.name)


def longest_text(model: Model) -> int | None:
    """How many tokens the network reads at once; None: any number. Further places may exist, and were not trained."""
    most = model.recipe.settings.network.longest
    return None if most is None else min(most, model.recipe.settings.corpus.sequence_length)


def reads_backward(model: Model) -> bool:
    """Whether the model writes what stands before the prompt."""
    return any(getattr(task, "direction", None) == "backward" for task in model.recipe.settings.objective.values())


def needs_equal_lengths(model: Model) -> bool:
    """Whether rows must begin together: a memory takes up what was read, filling too."""
    return model.recipe.settings.network.memory is not None or way_of(model.recipe) == "permuted"
