"""Pre-training tasks: one file each. This page finds them, groups them, and checks that they can be done at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from stemma.corpus.shards import Corpus
from stemma.corpus.view import View
from stemma.errors import UserError
from stemma.lineage import Recipe
from stemma.network.heads import HeadSpec
from stemma.network.memory_needed import check_memory
from stemma.network.network import Network
from stemma.objectives.absent import ORIGIN, switch_off
from stemma.objectives.base import MAKERS, Needs, Objective
from stemma.objectives.batch import Batch, Target, finish
from stemma.objectives.capitalisation import Capitalisation
from stemma.objectives.causal_lm import CausalLM
from stemma.objectives.denoise import Denoise
from stemma.objectives.dialogue_lm import DialogueLM
from stemma.objectives.discourse_relation import DiscourseRelation
from stemma.objectives.ir_relevance import IRRelevance
from stemma.objectives.masked_lm import MaskedLM
from stemma.objectives.material import check_speakers, check_words
from stemma.objectives.next_sentence import NextSentence
from stemma.objectives.permutation_lm import PermutationLM
from stemma.objectives.prefix_lm import PrefixLM
from stemma.objectives.replaced_token import ReplacedToken
from stemma.objectives.sentence_distance import SentenceDistance
from stemma.objectives.sentence_order import SentenceOrder
from stemma.objectives.sentence_reordering import SentenceReordering
from stemma.objectives.span_boundary import SpanBoundary
from stemma.objectives.span_corruption import SpanCorruption
from stemma.objectives.span_to_span import SpanToSpan
from stemma.objectives.token_document_relation import TokenDocumentRelation
from stemma.objectives.translation import Translation
from stemma.objectives.word_structure import WordStructure
from stemma.schema.corpus import parse_template
from stemma.schema.objective import Sees

OBJECTIVES: dict[str, type[Objective]] = {"masked_lm": MaskedLM, "replaced_token": ReplacedToken,
                                          "next_sentence": NextSentence, "causal_lm": CausalLM,
                                          "permutation_lm": PermutationLM, "prefix_lm": PrefixLM,
                                          "translation": Translation, "masked_span_to_span": SpanToSpan,
                                          "denoise": Denoise, "span_corruption": SpanCorruption,
                                          "span_boundary": SpanBoundary,
                                          "sentence_order": SentenceOrder, "sentence_distance": SentenceDistance,
                                          "sentence_reordering": SentenceReordering, "word_structure": WordStructure,
                                          "discourse_relation": DiscourseRelation, "capitalisation": Capitalisation,
                                          "token_document_relation": TokenDocumentRelation,
                                          "dialogue_lm": DialogueLM, "ir_relevance": IRRelevance}

__all__ = ["OBJECTIVES", "Batch", "Group", "Kind", "Needs", "Objective", "Target", "build_network", "build_objectives",
           "check_needs", "finish", "group_objectives", "heads_of", "without_data"]


@dataclass(frozen=True)
class Kind:
    """What objectives must have in common to share a forward pass."""

    packing: str
    visibility: Sees
    single: str
    pair: str
    task: int | None  # the number of the task vector that their rows carry


@dataclass(frozen=True)
class Group:
    """Objectives that share packing, visibility, templates and task vector, and therefore one forward pass."""

    kind: Kind
    objectives: tuple[Objective, ...]

    @property
    def packing(self) -> str:
        return self.kind.packing

    @property
    def visibility(self) -> Sees:
        return self.kind.visibility

    @property
    def decodes(self) -> bool:
        """Whether its texts are read and written apart."""
        return any(objective.settings.needs_decoder for objective in self.objectives)

    def raw_length(self, length: int) -> int:
        """The places that a row of text needs to fill a window of this length once it is corrupted."""
        special = sum(slot.name not in ("A", "B") for slot in parse_template(self.kind.single))
        return special + max(objective.raw_length(length, special) for objective in self.objectives)

    @property
    def copies(self) -> int | None:
        """Static data only where every objective that cares is static."""
        wanted = [objective.copies for objective in self.objectives if objective.copies is not None]
        return max(wanted) if wanted else None

    def backward(self, rows: int) -> np.ndarray | None:
        """(rows,) which rows of a batch are read from their text's end; None: no row is."""
        chosen = np.any([objective.backward_rows(rows) for objective in self.objectives], axis=0)
        return chosen if chosen.any() else None


def build_objectives(recipe: Recipe) -> list[Objective]:
    return [OBJECTIVES[settings.kind](name, settings) for name, settings in recipe.settings.objective.items()]


def group_objectives(recipe: Recipe, objectives: list[Objective]) -> list[Group]:
    """In recipe order; the first objective of a kind opens its group. Of those that guess tokens a group has one: a
    second one would hide what the first one left to guess from, so it opens a group of its own."""
    corpus = recipe.settings.corpus
    groups: dict[tuple[Kind, int], list[Objective]] = {}
    guessing: Counter[Kind] = Counter()
    for objective in objectives:
        settings = objective.settings
        kind = Kind(settings.packing or corpus.packing, objective.visibility, settings.single or corpus.single,
                    settings.pair or corpus.pair, settings.task_id)
        groups.setdefault((kind, guessing[kind] if objective.guesses_tokens else 0), []).append(objective)
        guessing[kind] += objective.guesses_tokens
    return [Group(kind, tuple(members)) for (kind, _), members in groups.items()]


def heads_of(objectives: list[Objective]) -> dict[str, HeadSpec]:
    """Every head that the objectives ask for; two may share one if they mean the same."""
    heads: dict[str, HeadSpec] = {}
    for objective in objectives:
        for name, spec in objective.needs().heads.items():
            if heads.setdefault(name, spec) != spec:
                raise UserError(f'objective "{objective.name}" needs another kind of head "{name}" than the objectives '
                                f"before it ({spec} against {heads[name]}); remove one of them from the recipe.")
    return heads


def build_network(recipe: Recipe, vocabulary: int | None = None) -> Network:
    """The recipe's network with random weights and the heads that its objectives need; where there is a generator, what
    does not judge it belongs to it."""
    settings, objectives = recipe.settings.network, build_objectives(recipe)
    size = vocabulary or recipe.settings.tokenizer.vocab_size
    check_memory(settings, size)
    if settings.generator is None:
        return Network(settings, size, heads_of(objectives))
    judging, writing = ([one for one in objectives if one.settings.needs_generator is judges]
                        for judges in (True, False))
    return Network(settings, size, heads_of(judging), generator=heads_of(writing))


def without_data(recipe: Recipe, corpus: Corpus) -> tuple[Recipe, list[str]]:
    """The recipe without the tasks that this corpus has nothing for, and a notice for each of them; and with whatever
    the corpus decides for the others."""
    lacking = {objective.name: why for objective in build_objectives(recipe)
               if (why := _lacks(recipe, objective, corpus)) is not None}
    settled = {f"objective.{objective.name}.{key}": value for objective in build_objectives(recipe)
               if objective.name not in lacking for key, value in objective.settles(corpus).items()}
    if settled:
        recipe = recipe.with_changes(settled, ORIGIN)
    if not lacking:
        return recipe, []
    if len(lacking) == len(recipe.settings.objective):
        raise UserError(f"the corpus {corpus.path} has nothing for any task of {recipe.label}",
                        [(f"objective.{name}", why) for name, why in lacking.items()])
    return switch_off(recipe, lacking)


def _lacks(recipe: Recipe, objective: Objective, corpus: Corpus) -> str | None:
    """What the task itself misses, or its packing does: whatever is done to dialogues needs some."""
    packing = recipe.settings.packings()[objective.name]
    if not len(View.whole(corpus).read_by(packing).documents):
        side = {"dialogue": "roles", "parallel": "relevance"}.get(packing)
        return f'the corpus has no "{side}"; {MAKERS[side]} makes them' if side else "the corpus has no running text"
    return objective.lacks(corpus)


def check_needs(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse, all reasons at once, a recipe whose objectives ask for what this corpus cannot give."""
    objectives = build_objectives(recipe)
    if not objectives:
        raise UserError(f'the recipe "{recipe.label}" has no objective, so there is nothing to train; choose one of '
                        "its descendants (`stemma tree`) or add an [objective.NAME] section.")
    late = [(objective.name, "start_step" if objective.settings.start_step else "starts") for objective in objectives
            if objective.settings.start_step > 0 or objective.settings.starts > 0]
    if len(late) == len(objectives):
        raise UserError(f"no objective of {recipe.label} starts at step 0, so the first step has nothing to train; set "
                        f"objective.{late[0][0]}.{late[0][1]}=0.")
    _check_pairs(recipe, corpus)
    _check_sentinels(recipe, corpus, objectives)
    check_words(recipe, corpus)
    check_speakers(recipe, corpus)
    problems: list[tuple[str, str]] = []
    for objective in objectives:
        needs = objective.needs()
        problems += [(f"objective.{objective.name}", f'needs the special token "{role}", which the tokenizer lacks')
                     for role in sorted(needs.roles - corpus.tokenizer.roles.keys())]
        problems += [(f"objective.{objective.name}", f'needs "{name}" boundaries: run `stemma corpus annotate` first')
                     for name in sorted(needs.fields - set(corpus.sides()))]
    for key, template in recipe.settings.templates().items():
        written = {slot.name for slot in parse_template(template)} - {"A", "B"}
        problems += [(key, f'writes the special token "{role}", which the tokenizer lacks')
                     for role in sorted(written - corpus.tokenizer.roles.keys())]
    start = recipe.settings.corpus.decoder_start
    if recipe.settings.network.decoder is not None and start not in corpus.tokenizer.roles:
        problems.append(("corpus.decoder_start", f'is the special token "{start}", which the tokenizer lacks'))
    if problems:
        raise UserError(f"the corpus {corpus.path} cannot serve {recipe.label}; train its tokenizer with "
                        f"`stemma tokenizer train ... --for {recipe.name}` and build it again", problems)


def _check_pairs(recipe: Recipe, corpus: Corpus) -> None:
    """Parallel text is needed where pairs are packed; elsewhere its sentences serve as plain text."""
    wanting = [name for name, packing in recipe.settings.packings().items() if packing == "parallel"]
    if wanting and not corpus.manifest.get("pairs") and "relevance" not in corpus.sides():
        raise UserError(f"the corpus {corpus.path} holds plain text, and objective.{wanting[0]} of {recipe.label} "
                        "needs pairs of source and target; build one with `stemma corpus build SOURCE --target "
                        "TARGET`, or from a table with `--pairs`.")


def _check_sentinels(recipe: Recipe, corpus: Corpus, objectives: list[Objective]) -> None:
    """Every span of a row has a sentinel of its own, and a vocabulary has only so many."""
    length, known = recipe.settings.corpus.sequence_length, len(corpus.tokenizer.sentinels)
    for objective in objectives:
        if isinstance(objective, SpanCorruption) and known and objective.most_spans(length) > known:
            raise UserError(f"objective.{objective.name} hides up to {objective.most_spans(length)} spans in a "
                            f"corpus.sequence_length of {length}, and the tokenizer of {corpus.path} has {known} "
                            f"sentinels; set a shorter corpus.sequence_length or a longer "
                            f"objective.{objective.name}.mean_span.")
