"""Masked language modelling: predict masked units from bidirectional context (BERT, arXiv:1810.04805), or under another
attention mask (UniLM, arXiv:1905.03197)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np

from stemma.objectives.adaptive_masking import AdaptiveMasking
from stemma.objectives.base import LM_HEAD, LossOutput, Objective, Requirements
from stemma.objectives.masking import (
    choose_tokens,
    choose_units,
    merge_adjacent_units,
    replace_tokens,
    restrict_units,
    segment_b_mask,
    token_units,
    truncated_geometric,
)
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import BelowOne, Conflict, ConflictKey, Count, OpenFraction, Probability
from stemma.schema.corpus import packing_names, pair_packings, parse_template
from stemma.schema.objective import GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.heads import LMHead
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings

LM_HEAD_NAME = LM_HEAD
UNIT_ANNOTATIONS = {"phrase": "phrases", "entity": "entities"}  # the annotation with the unit boundaries
PAIR_MASK_RATE = 0.7  # masking rate of UniLM's fine-tuning on pairs, from its released commands
NgramProbabilities = Annotated[list[Probability], base.constraint(
    lambda probabilities: abs(sum(probabilities) - 1) < 1e-6,
    "must add up to 1: the probabilities that a unit is 1, 2, 3... tokens long")]
Unit = Literal["token", "word", "ngram", "word_ngram", "span", "phrase", "entity"]


class MaskedLMSettings(ObjectiveSettings):
    kind: Literal["masked_lm"]
    rate: OpenFraction  # masking rate: fraction of tokens that are predicted
    final_rate: OpenFraction | None = None  # masking rate at the end: linear from `rate`; None = always `rate`
    unit: Unit  # masking unit: selected as a whole
    ngrams: NgramProbabilities = [0.8, 0.1, 0.1]  # probabilities of 1, 2, 3... tokens (ngram: UniLM) or words
    #                                               (word_ngram: ALBERT)
    geometric_p: OpenFraction = 0.2  # unit span: probability that a span ends after each word (SpanBERT)
    max_span_words: Count = 10  # unit span: maximum number of words
    replace_whole_units: bool = False  # mask, replace or keep all tokens of a unit alike
    attention_mask: Literal["full", "prefix", "causal", "later"] = "full"  # prefix: seq2seq; later: right-to-left
    scored: Literal["all", "second"] = "all"  # second: A of a pair is context, only B is masked
    # Masked next-token prediction: the position before a masked token predicts it, as in a causal LM, so that both can
    # share a head (GPT-BERT, arXiv:2410.24159); None = the masked position itself.
    shifted: bool | None = None
    dynamic: bool  # dynamic masking; otherwise `duplicates` statically masked copies take turns
    duplicates: Count = 10
    mask: Probability = 0.8  # of the selected tokens: replaced by the mask token
    random: Probability = 0.1  # of the selected tokens: replaced by a random token; the rest stays unchanged
    adaptive: bool = False  # mask tokens in proportion to the model's error rate on them (arXiv:2510.20475)
    adaptive_interval: Count = 200  # steps between updates of the error rates
    adaptive_decay: BelowOne = 0.2  # weight of the error rates before an update
    transform: bool = True  # BERT's dense layer and norm before the output layer; NeoBERT has none

    special_tokens = frozenset({"mask"})
    masks_tokens = True
    size_keys = ("rate", "final_rate")  # ELECTRA-large masks more: its better generator leaves fewer replaced tokens
    one_decision = (("rate", "final_rate"), ("unit", "ngrams", "geometric_p", "max_span_words", "replace_whole_units"),
                    ("dynamic", "duplicates"), ("mask", "random"),
                    ("adaptive", "adaptive_interval", "adaptive_decay"))

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        """Static masking stores rows independently, so it excludes contiguous packings; so do attention masks that
        ignore the memory."""
        if self.attention_mask == "prefix" or self.scored == "second":
            return pair_packings()
        return () if self.dynamic and self.attention_mask == "full" else packing_names(contiguous=False)

    @property
    def generation(self) -> GenerationCapability | None:
        """Generation by a mask token after the text works if the model was trained without attention to the right."""
        if self.attention_mask not in ("prefix", "causal"):
            return None
        return GenerationCapability("cloze", paired=self.attention_mask == "prefix")

    @property
    def predicts_bidirectionally(self) -> bool:
        return self.attention_mask == "full"

    @property
    def target_shift(self) -> int:
        return int(bool(self.shifted))

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("masked",) if self.attention_mask == "full" and self.scored == "all" else ()

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        """UniLM's settings. A bidirectional model learns sequence-to-sequence generation from the pairs."""
        if self.shifted:
            return None
        keys = {"scored": "second", "rate": PAIR_MASK_RATE, "final_rate": None}
        if self.attention_mask == "full":
            return {**keys, "attention_mask": "prefix", "unit": "token", "replace_whole_units": False, "dynamic": True}
        return keys if self.attention_mask == "prefix" else None

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.final_rate is not None and not self.dynamic:
            yield (ConflictKey("final_rate", "static masks are made once for the whole run: set dynamic=true"),
                   ConflictKey("dynamic", "a masking rate that changes needs dynamic masks"))
        if self.shifted and (self.attention_mask != "full" or self.scored != "all"):
            what = "masked next-token prediction is bidirectional: set attention_mask=full and scored=all"
            yield tuple(ConflictKey(key, what) for key in ("shifted", "attention_mask", "scored"))
        if self.mask + self.random > 1:
            problem = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (ConflictKey("mask", problem), ConflictKey("random", problem))
        if self.adaptive and self.unit != "token":
            yield (ConflictKey("adaptive", f"has error rates of tokens; set unit=token (not {self.unit})"),
                   ConflictKey("unit", "with adaptive=true only token will do"))
        if self.adaptive and not self.dynamic:
            yield (ConflictKey("adaptive", "changes the masks during training; set dynamic=true"),
                   ConflictKey("dynamic", "with adaptive=true masks must be dynamic"))
        if self.scored == "second" and self.attention_mask == "later":
            yield (ConflictKey("scored", "with attention_mask=later B does not attend to A, so B cannot be predicted "
                                         "from it"),
                   ConflictKey("attention_mask", "with scored=second B must attend to A: full, prefix or causal"))

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        yield from super().recipe_conflicts(name, recipe)
        if self.adaptive and recipe.network.embedding.cutoffs:
            yield (ConflictKey(f"objective.{name}.adaptive", "needs all logits, and an adaptive softmax never has "
                                                               "them"),
                   ConflictKey("network.embedding.cutoffs", f"do not combine with objective.{name}.adaptive"))
        template = self.single or recipe.corpus.single
        if self.shifted and parse_template(template)[0].name in ("A", "B"):
            key = f"objective.{name}.single" if self.single else "corpus.single"
            yield (ConflictKey(key, f'"{template}" has no position before the first token, where '
                                    'masked next-token prediction predicts it: begin with "start"'),
                   ConflictKey(f"objective.{name}.shifted", f"needs a special token at the start of {key}"))
        others = [other for other, task in recipe.objective.items() if task.needs_masked_tokens or task.needs_generator]
        if self.shifted and others:
            what = f"objective.{others[0]} reads the masked positions themselves"
            yield (ConflictKey(f"objective.{name}.shifted", f"{what}: leave it out"),
                   ConflictKey(f"objective.{others[0]}", f"does not combine with objective.{name}.shifted"))


@register("objective", "masked_lm", MaskedLMSettings)
class MaskedLM(Objective):
    settings: MaskedLMSettings
    predicts_tokens = True

    def __init__(self, name: str, settings: MaskedLMSettings):
        super().__init__(name, settings)
        self._adaptive = AdaptiveMasking(settings.adaptive_interval, settings.adaptive_decay) \
            if settings.adaptive else None

    @property
    def num_static_copies(self) -> int | None:
        return None if self.settings.dynamic else self.settings.duplicates

    @property
    def follows_schedule(self) -> bool:
        return self.settings.final_rate is not None

    def rate_at(self, progress: float) -> float:
        """The masking rate after this fraction of the budget."""
        start, final = self.settings.rate, self.settings.final_rate
        return start if final is None else start + (final - start) * min(progress, 1.0)

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        annotation = UNIT_ANNOTATIONS.get(self.settings.unit)
        return Requirements(special_tokens=frozenset({"mask"}),
                            annotations=frozenset({annotation} if annotation else ()),
                            heads={LM_HEAD_NAME: LMHeadSpec(transform=self.settings.transform)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        self._make_targets(draft, rng, self._adaptive)

    def make_validation_targets(self, draft: Draft, rng: RNG) -> None:
        self._make_targets(draft, rng, None)

    def start_step(self, step: int) -> None:
        if self._adaptive is not None:
            self._adaptive.start_step(step)

    def changes_at(self, step: int) -> bool:
        return self._adaptive is not None and self._adaptive.changes_at(step)

    def state(self) -> dict[str, Tensor]:
        return {} if self._adaptive is None else self._adaptive.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        if self._adaptive is not None:
            self._adaptive.restore(state)

    def _make_targets(self, draft: Draft, rng: RNG, adaptive: AdaptiveMasking | None) -> None:
        settings = self.settings
        candidates = segment_b_mask(draft) if settings.scored == "second" else None
        if settings.shifted:  # no position comes before the first one
            candidates = draft.is_text & (np.arange(draft.is_text.shape[1]) > 0)
        if settings.unit == "token":
            selected = choose_tokens(draft, self.rate_at(draft.progress), rng, candidates, adaptive)
        else:
            selected = self._choose_units(draft, candidates, rng)
        if settings.attention_mask == "prefix":
            draft.prefix_lengths = draft.segment_b_start()
        shift = settings.target_shift
        draft.add_token_targets(LM_HEAD_NAME, at=np.roll(selected, -shift, axis=1),
                                labels=np.roll(draft.original_ids, -shift, axis=1))
        draft.input_ids = replace_tokens(draft, selected, settings.mask, settings.random, rng,
                                         draft.unit_ids if settings.replace_whole_units else None)

    def _choose_units(self, draft: Draft, candidates: np.ndarray | None, rng: RNG) -> np.ndarray:
        """(rows, length) bool: tokens of the selected units; `draft.unit_ids` keeps the units."""
        settings, unit, rate = self.settings, self.settings.unit, self.rate_at(draft.progress)
        if unit == "ngram":
            units = token_units(draft.is_text)
        else:
            units = draft.annotated_unit_ids(UNIT_ANNOTATIONS[unit]) if unit in UNIT_ANNOTATIONS else draft.word_ids
        units = units if candidates is None else restrict_units(units, candidates)
        draft.unit_ids = units
        if unit == "span":
            span_lengths = truncated_geometric(settings.geometric_p, settings.max_span_words)
            draft.unit_ids = merge_adjacent_units(units, span_lengths, rng)
            return choose_units(units, rate, rng, within=draft.unit_ids)
        if unit in ("ngram", "word_ngram"):
            draft.unit_ids = merge_adjacent_units(units, settings.ngrams, rng)
        return choose_units(draft.unit_ids, rate, rng)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        target = batch.token_targets[LM_HEAD_NAME]
        hidden = output["encoder"].flatten(0, 1)[target.index]  # (N, width): scored positions only
        head = network.input_network.head(LM_HEAD_NAME)
        adaptive = self._adaptive if network.training and not batch.held_out else None
        if network.input_network is network and adaptive is not None:
            result = cast("LMHead", head).loss_and_correct(hidden, target.labels, target.denominator)
            adaptive.add_predictions(target.labels, result.correct, network.vocab_size)
            return {self.name: result.loss}
        if network.input_network is network:
            return {self.name: head.loss(hidden, target.labels, target.denominator)}
        import torch

        # The generator also samples tokens, which the discriminator then classifies (ELECTRA).
        sample = cast("LMHead", head).loss_and_sample(hidden, target.labels, target.denominator)
        if adaptive is not None:
            adaptive.add_predictions(target.labels, sample.correct, network.vocab_size)
        accuracy = sample.correct.sum(), torch.tensor(len(hidden))
        return LossOutput({self.name: sample.loss}, {"generator_accuracy": accuracy}, sample.sampled)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD_NAME].labels.cpu().numpy()].mean())}
