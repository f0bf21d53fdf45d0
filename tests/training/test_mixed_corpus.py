"""Objectives on running text, dialogues and relevance pairs, trained together from one corpus."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import OBJECTS, SEED
from mixed_corpora import judged, mixed_corpus

import stemma
from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import DOCUMENT_KINDS
from stemma.objectives import build_objectives, drop_unsupported
from stemma.training.corpus_cache import is_parallel
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader

RECIPE = """
parent = "bert"
remove = ["objective.next_sentence"]
[objective.talk]
kind = "dialogue_lm"
packing = "dialogue"
[objective.talk_mask]
kind = "masked_lm"
packing = "dialogue"
rate = 0.15
unit = "token"
dynamic = true
[objective.clicks]
kind = "ir_relevance"
packing = "parallel"
turns = 3.0
"""
SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64", "network.dropout=0.0",
         "network.attention.dropout=0.0", "network.initialization.std=0.1",  # the default is too small here
         "corpus.sequence_length=32", "training.batch_size=16", "training.warmup_steps=2", "training.threads=1",
         "training.learning_rate=0.003", "corpus.validation=0.2", "objective.masked_lm.dynamic=true"]
KIND_OF = {"talk": "roles", "talk_mask": "roles", "clicks": "relevance", "masked_lm": "running"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "talking.toml"
    path.write_text(RECIPE)
    return f"{path}@tiny"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    """The label of a query follows from its words, so it can be learned."""
    rows = [(query, title, OBJECTS.index(query) % 3) for query, title, _ in judged(120)]
    return mixed_corpus(tmp_path_factory.mktemp("talking"), tokenizer_folder, rows=rows)


def test_each_objective_group_reads_its_own_kind_of_documents(recipe, corpus):
    resolved = recipe_loading.recipe(recipe, SMALL)
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    try:
        seen_kinds = set()
        for step in range(40):
            draft, active = loader.build_draft(step, 32)
            kind = KIND_OF[active[0].name]
            assert {KIND_OF[objective.name] for objective in active} == {kind}
            first = draft.corpus_offsets[draft.corpus_offsets >= 0]
            held_out = np.searchsorted(loader.validation.document_ranges[:, 0], first, side="right") - 1
            assert not ((held_out >= 0) & (first < loader.validation.document_ranges[held_out, 1])).any()
            document_index = np.searchsorted(draft.subset.document_ranges[:, 0], draft.spans.start, side="right") - 1
            assert set(draft.subset.document_kinds()[document_index].tolist()) == {DOCUMENT_KINDS.index(kind)}
            seen_kinds.add(kind)
        assert seen_kinds == set(DOCUMENT_KINDS)
        result = {objective.name for objectives, _ in loader.validation_batches(32) for objective in objectives}
        assert result == set(KIND_OF)
        assert np.exp(loader.unigram()).sum() == pytest.approx(1.0)
    finally:
        loader.close()


def test_all_objectives_are_trained_and_their_losses_reported(recipe, corpus, tmp_path):
    result = pretrain(recipe, corpus.path, tmp_path / "run", steps=150, seed=SEED,
                      changes=[*SMALL, "training.log_every=1"])
    assert set(result["validation_losses"]) == set(KIND_OF)
    assert result["validation_losses"]["clicks"] < 0.7 * result["baselines"]["clicks"]
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    first = next(entry["losses"]["talk_mask"] for entry in entries if "talk_mask" in entry.get("losses", ()))
    assert result["validation_losses"]["talk_mask"] < 0.8 * first
    assert {"dialogue_lm", "ir_relevance", "vocabulary", "pooler"} <= set(stemma.load(tmp_path / "run").network.heads)


def test_objectives_without_their_kind_of_documents_are_switched_off(recipe, corpus_folder, tmp_path, caplog):
    result = pretrain(recipe, corpus_folder, tmp_path / "run", steps=2, changes=SMALL)
    assert set(result["validation_losses"]) == {"masked_lm"}
    for name in ("talk", "talk_mask", "clicks"):
        assert any(f"objective.{name} " in text for text in caplog.messages), caplog.messages


def test_without_running_text_its_objectives_are_switched_off(recipe, tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False)
    remaining, warnings = drop_unsupported(recipe_loading.recipe(recipe), corpus)
    assert set(remaining.settings.objective) == {"talk", "talk_mask", "clicks"}
    assert "objective.masked_lm" in warnings[0] and "no running text" in warnings[0]


def test_raw_text_is_parallel_only_if_all_objectives_are(recipe):
    assert not is_parallel(recipe_loading.recipe(recipe)) and is_parallel(recipe_loading.recipe("transformer"))
