"""How a model generates: its decoding mode, and the special tokens around the prompt.

- next: a causal language model predicts the token after the text.
- permuted: the position after the text is a query of the second stream; no position attends to it (XLNet,
  arXiv:1906.08237).
- prefix: bidirectional attention over the prompt, causal attention over the output; the next token is predicted.
  (A causal model that is fine-tuned on pairs also has this mode, with causal attention over the prompt.)
- cloze: a mask token after the text is predicted and then replaced by the prediction (UniLM, arXiv:1905.03197).
- diffusion: masks after the text are unmasked over many steps, in any order (MDLM, arXiv:2406.07524).
- decoder: an encoder reads the source text and a decoder generates the output (arXiv:1706.03762).

The first two and diffusion continue a prompt. The others generate a new text from a source, as does a permuted model
that is fine-tuned on pairs.
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
    """The mode in which the model generates; None if no objective taught it to. Of several modes, the one that was
    trained most directly."""
    learned = _learned_mode(recipe)
    return None if learned is None else learned[0]


def is_seq2seq(recipe: Recipe) -> bool:
    """Whether the model generates a new text from a source, instead of continuing a prompt."""
    learned = _learned_mode(recipe)
    return learned is not None and _is_seq2seq_objective(*learned)


def infilling_gap(recipe: Recipe) -> GapPrompt | None:
    """The gap after a text that makes an infilling encoder-decoder continue it; None for other models."""
    learned = _learned_mode(recipe)
    return None if learned is None or learned[1].generation is None else learned[1].generation.gap


def _is_seq2seq_objective(mode: DecodingMode, task: ObjectiveSettings) -> bool:
    return mode in SEQ2SEQ_MODES or (task.generation is not None and task.generation.paired)


def _learned_mode(recipe: Recipe) -> tuple[DecodingMode, ObjectiveSettings] | None:
    """The decoding mode and the objective that taught it. Objectives on pairs of texts come first."""
    generative = [(capability, task) for task in recipe.settings.objective.values()
                  if (capability := task.generation) is not None]
    best = min(generative, key=lambda pair: (get_args(DecodingMode).index(pair[0].mode), not pair[0].paired),
               default=None)
    return None if best is None else (best[0].mode, best[1])


@dataclass(frozen=True)
class DecodingSpec:
    """A decoding mode with the token ids of one vocabulary."""

    mode: DecodingMode
    prompt_template: tuple[tuple[int | None, int], ...]  # (token id, segment) per slot; token id None is the text
    output_segment: int  # segment of generated tokens
    bidirectional_prompt: bool  # whether prompt positions attend to the whole prompt
    decoder_prefix: tuple[int, ...]  # decoder input before the first generated token
    eos_token_ids: tuple[int, ...]
    mask_token_id: int | None  # the token to predict at, in modes cloze and diffusion
    max_length: int | None  # context length; None: unbounded
    is_seq2seq: bool  # a new text is generated from a source
    row_template: tuple[int | None, ...] = (None,)  # mode diffusion: token ids around the text (None) in a row

    @property
    def continues_prompt(self) -> bool:
        """Whether prompt and output are one text."""
        return self.mode in ("next", "permuted", "prefix", "diffusion")

    @property
    def max_prompt_tokens(self) -> int | None:
        """The longest text that fits in a prompt; None: unbounded."""
        if self.max_length is None:
            return None
        if self.mode == "diffusion":  # at least one mask after the prompt
            return self.max_length - len(self.row_template)
        return self.max_length - (len(self.prompt_template) - 1) - (self.is_seq2seq and self.mode != "decoder")

    def format_prompt(self, text: Sequence[int]) -> list[int]:
        return [token for slot, _ in self.prompt_template for token in (text if slot is None else [slot])]

    def prompt_segments(self, prompt_length: int) -> list[int] | None:
        """The segment ids of a prompt of this length; None if prompt and output are all segment 0."""
        if not self.output_segment and not any(segment for _, segment in self.prompt_template):
            return None
        text = prompt_length - len(self.prompt_template) + 1
        return [segment for slot, segment in self.prompt_template for _ in range(text if slot is None else 1)]

    def max_new_tokens(self, prompt_length: int) -> int | None:
        """How many tokens can be generated from a prompt of this length; None: unbounded."""
        if self.max_length is None or not self.is_seq2seq:
            return None
        return self.max_length - (len(self.decoder_prefix) - 1 if self.mode == "decoder" else prompt_length)


def decoding_spec(model: Model) -> DecodingSpec | None:
    """How this model generates; None if no objective taught it to."""
    learned = _learned_mode(model.recipe)
    if learned is None:
        return None
    mode, task = learned
    corpus = model.recipe.settings.corpus
    eos_ids = {model.document_separator_id}
    if model.tokenizer is not None:
        eos_ids.add(model.tokenizer.special_token_ids.get("end"))
    prompt_slots, output_slot, prefix_slots = [TemplateSlot("A", 0)], TemplateSlot("A", 0), []
    if _is_seq2seq_objective(mode, task):
        paired = task.generation is not None and task.generation.paired
        template = parse_template((task.pair or corpus.pair) if paired else (task.single or corpus.single))
        output = [slot.name for slot in template].index("B" if paired else "A")
        output_slot, slots_before, slots_after = template[output], template[:output], template[output + 1:]
        if slots_after:
            eos_ids = {model.require_tokenizer().special_id(slots_after[0].name)}
        if mode == "decoder":
            prompt_slots, prefix_slots = template, [TemplateSlot(corpus.decoder_start, 0), *slots_before]
        else:
            prompt_slots = slots_before if paired else [*slots_before, output_slot]
    return DecodingSpec(mode, tuple((_slot_token_id(model, slot), slot.segment) for slot in prompt_slots),
                        output_slot.segment, bidirectional_prompt=task.attention_mask_kind != "causal",
                        decoder_prefix=tuple(_slot_token_id(model, slot) or 0 for slot in prefix_slots),
                        eos_token_ids=tuple(sorted(token for token in eos_ids if token is not None)),
                        mask_token_id=(model.require_tokenizer().special_id("mask") if mode in ("cloze", "diffusion")
                                       else None),
                        max_length=max_input_tokens(model), is_seq2seq=_is_seq2seq_objective(mode, task),
                        row_template=_row_template(model, task) if mode == "diffusion" else (None,))


def _row_template(model: Model, task: ObjectiveSettings) -> tuple[int | None, ...]:
    slots = parse_template(task.single or model.recipe.settings.corpus.single)
    return tuple(_slot_token_id(model, slot) for slot in slots)


def _slot_token_id(model: Model, slot: TemplateSlot) -> int | None:
    return None if slot.name == "A" else model.require_tokenizer().special_id(slot.name)


def max_input_tokens(model: Model) -> int | None:
    """The context length; None: unbounded. Positions beyond the training sequence length may exist, untrained."""
    max_length = model.recipe.settings.network.max_length
    return None if max_length is None else min(max_length, model.recipe.settings.corpus.sequence_length)


def is_right_to_left(model: Model) -> bool:
    """Whether the model generates the text before the prompt."""
    return any(getattr(task, "direction", None) == "backward" for task in model.recipe.settings.objective.values())


def needs_equal_lengths(model: Model) -> bool:
    """Whether the prompts of a batch must have one length: a memory would store their padding, and masks begin at one
    position."""
    return model.recipe.settings.network.continues or decoding_mode(model.recipe) in ("permuted", "diffusion")
