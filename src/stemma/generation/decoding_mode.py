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

from stemma.model import Model
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import TemplateSlot, parse_template
from stemma.schema.objective import DecodingMode, GapPrompt, ObjectiveSettings

SEQ2SEQ_MODES: tuple[DecodingMode, ...] = ("decoder", "prefix", "cloze")


def decoding_mode(recipe: Recipe) -> DecodingMode | None:
    """None: it only reads. Of several ways, the one that was learned most directly."""
    found = _learned_mode(recipe)
    return None if found is None else found[0]


def is_seq2seq(recipe: Recipe) -> bool:
    """Whether it writes a text of its own from a source, and does not write on from a prompt."""
    found = _learned_mode(recipe)
    return found is not None and _is_seq2seq_objective(*found)


def infilling_gap(recipe: Recipe) -> GapPrompt | None:
    """What a model is asked by to go on with a text, where it is pre-trained to fill gaps with a decoder."""
    found = _learned_mode(recipe)
    return None if found is None or found[1].generation is None else found[1].generation.gap


def _is_seq2seq_objective(mode: DecodingMode, task: ObjectiveSettings) -> bool:
    return mode in SEQ2SEQ_MODES or (task.generation is not None and task.generation.paired)


def _learned_mode(recipe: Recipe) -> tuple[DecodingMode, ObjectiveSettings] | None:
    """Objectives say how a model writes that has learned them; learned from pairs is learned more directly."""
    tasks = [(writing, task) for task in recipe.settings.objective.values() if (writing := task.generation) is not None]
    first = min(tasks, key=lambda found: (get_args(DecodingMode).index(found[0].mode), not found[0].paired),
                default=None)
    return None if first is None else (first[0].mode, first[1])


@dataclass(frozen=True)
class DecodingSpec:
    """A way of writing with the tokens of one vocabulary."""

    mode: DecodingMode
    prompt_template: tuple[tuple[int | None, int], ...]  # token (None: the text) and segment of what is laid out for a
    #                                                      prompt
    output_segment: int  # the segment of what is written
    bidirectional_prompt: bool  # whether the given text sees itself in full
    decoder_prefix: tuple[int, ...]  # what a decoder reads before its first own token
    eos_token_ids: tuple[int, ...]  # tokens that end what is written
    mask_token_id: int | None  # what asks, if a mask does
    max_length: int | None  # how many tokens are read at once; None: any number
    is_seq2seq: bool  # a text of its own is written from what is given

    @property
    def continues_prompt(self) -> bool:
        """Whether prompt and writing are one text."""
        return self.mode in ("next", "permuted", "prefix")

    @property
    def max_prompt_tokens(self) -> int | None:
        """How long a text may be given."""
        if self.max_length is None:
            return None
        return self.max_length - (len(self.prompt_template) - 1) - (self.is_seq2seq and self.mode != "decoder")

    def format_prompt(self, text: Sequence[int]) -> list[int]:
        return [token for slot, _ in self.prompt_template for token in (text if slot is None else [slot])]

    def prompt_segments(self, prompt_length: int) -> list[int] | None:
        """Of the places of a prompt of so many tokens; None: all of it, and what is written, is segment 0."""
        if not self.output_segment and not any(segment for _, segment in self.prompt_template):
            return None
        text = prompt_length - len(self.prompt_template) + 1
        return [segment for slot, segment in self.prompt_template for _ in range(text if slot is None else 1)]

    def max_new_tokens(self, prompt_length: int) -> int | None:
        """How many tokens can be written from a prompt of so many; None: as many as one likes."""
        if self.max_length is None or not self.is_seq2seq:
            return None
        return self.max_length - (len(self.decoder_prefix) - 1 if self.mode == "decoder" else prompt_length)


def decoding_spec(model: Model) -> DecodingSpec | None:
    found = _learned_mode(model.recipe)
    if found is None:
        return None
    way, task = found
    corpus = model.recipe.settings.corpus
    ends = {model.document_separator_id} | ({model.tokenizer.special_token_ids.get("end")} if model.tokenizer
                                            is not None else set())
    slots, written, begin = [TemplateSlot("A", 0)], TemplateSlot("A", 0), []
    if _is_seq2seq_objective(way, task):
        paired = task.generation is not None and task.generation.paired
        template = parse_template((task.pair or corpus.pair) if paired else (task.single or corpus.single))
        place = [slot.name for slot in template].index("B" if paired else "A")
        written, before, after = template[place], template[:place], template[place + 1:]
        if after:
            ends = {model.require_tokenizer().special_id(after[0].name)}
        if way == "decoder":
            slots, begin = template, [TemplateSlot(corpus.decoder_start, 0), *before]
        else:
            slots = before if paired else [*before, written]
    return DecodingSpec(way, tuple((_slot_token_id(model, slot), slot.segment) for slot in slots), written.segment,
                  bidirectional_prompt=task.attention_mask_kind != "causal",
                        decoder_prefix=tuple(_slot_token_id(model, slot) or 0 for slot in begin),
                  eos_token_ids=tuple(sorted(token for token in ends if token is not None)),
                  mask_token_id=model.require_tokenizer().special_id("mask") if way == "cloze" else None,
                        max_length=max_input_tokens(model),
                  is_seq2seq=_is_seq2seq_objective(way, task))


def _slot_token_id(model: Model, slot: TemplateSlot) -> int | None:
    return None if slot.name == "A" else model.require_tokenizer().special_id(slot.name)


def max_input_tokens(model: Model) -> int | None:
    """How many tokens the network reads at once; None: any number. Further places may exist, and were not trained."""
    most = model.recipe.settings.network.max_length
    return None if most is None else min(most, model.recipe.settings.corpus.sequence_length)


def is_right_to_left(model: Model) -> bool:
    """Whether the model writes what stands before the prompt."""
    return any(getattr(task, "direction", None) == "backward" for task in model.recipe.settings.objective.values())


def needs_equal_lengths(model: Model) -> bool:
    """Whether rows must begin together: a memory takes up what was read, filling too."""
    return model.recipe.settings.network.memory is not None or decoding_mode(model.recipe) == "permuted"
