from collections import Counter

import numpy as np
import pytest
import torch
from small_corpora import draft_of, packing_of, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.objectives import build_network, build_objectives, collate, group_objectives
from stemma.objectives.word_structure import WordStructure, WordStructureSettings

NAME = "word_structure"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def objective(rate: float = 0.05, length: int = 3) -> WordStructure:
    return WordStructure(NAME, WordStructureSettings(kind=NAME, rate=rate, length=length))


def chosen(draft: Draft) -> np.ndarray:
    result = np.zeros(draft.is_text.size, dtype=bool)
    result[draft.token_targets[NAME].index] = True
    return result.reshape(draft.is_text.shape)


def numbered(draft: Draft) -> None:
    """Make every token of a row another one, so that its place can be read off it."""
    draft.packed_rows.input_ids.setflags(write=True)
    draft.packed_rows.input_ids[:] = np.arange(draft.is_text.size).reshape(draft.is_text.shape)


@pytest.mark.parametrize(("rate", "length"), [(0.05, 3), (0.3, 2), (0.2, 4)])
def test_tokens_move_only_within_their_run_and_labels_are_the_originals(corpus, rate, length):
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=200)
    numbered(draft)
    objective(rate, length).make_targets(draft, np.random.default_rng(0))
    asked = chosen(draft)
    assert asked.any() and not (asked & ~draft.is_text).any()
    assert (draft.input_ids[~asked] == draft.original_ids[~asked]).all()
    assert (draft.token_targets[NAME].labels == draft.original_ids[asked]).all()
    moved = 0
    for row in range(200):
        places = np.flatnonzero(asked[row])
        assert len(places) % length == 0
        for run in places.reshape(-1, length):
            assert (np.diff(run) == 1).all()
            assert sorted(draft.input_ids[row, run]) == sorted(draft.original_ids[row, run])
            moved += (draft.input_ids[row, run] != draft.original_ids[row, run]).any()
    assert moved > 20


@pytest.mark.parametrize(("rate", "length"), [(0.05, 3), (0.15, 3), (0.1, 5)])
def test_the_rate_is_exact_in_the_mean(corpus, rate, length):
    draft = draft_of(whole(corpus), "full_sentences", 64, rows=4000)
    objective(rate, length).make_targets(draft, np.random.default_rng(1))
    result, text = chosen(draft).sum(), draft.is_text.sum()
    assert abs(result / text - rate) < 4 * (rate * length / text) ** 0.5


def test_every_order_is_as_likely_as_any_other(corpus):
    draft = draft_of(whole(corpus), "full_sentences", 64, rows=3000)
    numbered(draft)
    objective(0.2).make_targets(draft, np.random.default_rng(2))
    places = np.flatnonzero(chosen(draft)).reshape(-1, 3)
    orders = Counter(map(tuple, (draft.input_ids.reshape(-1)[places] - draft.original_ids.reshape(-1)[places[:,
        :1]]).tolist()))
    assert len(orders) == 6 and len(places) > 5000
    assert all(abs(count / len(places) - 1 / 6) < 5 * (1 / 6 / len(places)) ** 0.5 for count in orders.values())


def test_every_run_is_as_likely_as_any_other(corpus):
    """In full rows each place of the text begins a run equally often, apart from the last two."""
    draft = draft_of(whole(corpus), "stream", 20, rows=20_000)
    full = draft.lengths == 20
    objective(0.2).make_targets(draft, np.random.default_rng(3))
    begins = np.zeros(20)
    rows = chosen(draft)
    for start in range(1, 17):
        begins[start] = (rows[full, start:start + 3].all(1) & ~rows[full, start - 1]).sum()
    # a run that touches the one before is not seen to begin, so only the pattern is compared: no place is left out
    assert begins[1:17].min() > 0.5 * begins[1:17].max() > 0 and not rows[:, 0].any()


def test_what_the_masks_hid_or_ask_for_is_left_alone(corpus):
    recipe = recipe_loading.recipe("structbert@tiny", ["objective.word_structure.rate=0.3"])
    objectives = build_objectives(recipe)
    assert [task.name for task in objectives] == ["sentence_order", "masked_lm", NAME]
    groups = group_objectives(recipe, objectives)
    assert [task.name for group in groups for task in group.objectives] == ["sentence_order", "masked_lm", NAME]
    assert len(groups) == 1 and not objectives[2].predicts_tokens
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=300)
    rng = np.random.default_rng(4)
    for task in objectives:
        task.make_targets(draft, rng)
    masked = np.zeros(draft.is_text.size, dtype=bool)
    masked[draft.token_targets["vocabulary"].index] = True
    asked = chosen(draft)
    assert asked.any() and not (asked & masked.reshape(asked.shape)).any()
    assert (draft.token_targets["vocabulary"].labels == draft.original_ids.reshape(-1)[masked]).all()


def test_it_is_scored_by_the_head_of_masked_tokens(corpus):
    recipe = recipe_loading.recipe("structbert@tiny", ["network.dropout=0.0", "network.attention.dropout=0.0"])
    objectives = build_objectives(recipe)
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=20)
    rng = np.random.default_rng(5)
    for task in objectives:
        task.make_targets(draft, rng)
    batch, network = collate(draft), build_network(recipe, corpus.tokenizer.vocab_size).eval()
    assert set(network.heads) == {"pooler", "sentence_order", "vocabulary"}
    target = batch.token_targets[NAME]
    with torch.no_grad():
        hidden = network(batch.streams)
        logits = network.head("vocabulary")(hidden["encoder"].flatten(0, 1)[target.index])
        expected = torch.nn.functional.cross_entropy(logits, target.labels)
        assert objectives[2].loss(network, hidden, batch)[NAME].item() == pytest.approx(expected.item(), rel=1e-4)
    unigram = np.log(np.full(corpus.tokenizer.vocab_size, 0.25))
    assert objectives[2].baseline(batch, unigram)[NAME] == pytest.approx(np.log(4))


def test_a_row_with_its_own_randomness_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 40)
    pieces, _ = RowSampler(view, packing, 0).next_rows(20)
    together = Draft(view, pieces.select(np.arange(20)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(20)])
    objective(0.3).make_targets(together, rng)
    after = rng.random((20, 2))
    for row in range(20):
        alone = Draft(view, pieces.select(np.array([row])), packing.template)
        own = PerRowRNG([[1, row]])
        objective(0.3).make_targets(alone, own)
        assert (alone.input_ids[0] == together.input_ids[row]).all()
        assert (own.random((1, 2))[0] == after[row]).all()
