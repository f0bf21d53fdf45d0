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


def selected_positions(draft: Draft) -> np.ndarray:
    result = np.zeros(draft.is_text.size, dtype=bool)
    result[draft.token_targets[NAME].index] = True
    return result.reshape(draft.is_text.shape)


def set_unique_ids(draft: Draft) -> None:
    """Give every position its own token id, so that a moved token shows where it came from."""
    draft.packed_rows.input_ids.setflags(write=True)
    draft.packed_rows.input_ids[:] = np.arange(draft.is_text.size).reshape(draft.is_text.shape)


@pytest.mark.parametrize(("rate", "length"), [(0.05, 3), (0.3, 2), (0.2, 4)])
def test_tokens_are_shuffled_only_within_their_span_and_labels_are_the_originals(corpus, rate, length):
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=200)
    set_unique_ids(draft)
    objective(rate, length).make_targets(draft, np.random.default_rng(0))
    selected = selected_positions(draft)
    assert selected.any() and not (selected & ~draft.is_text).any()
    assert (draft.input_ids[~selected] == draft.original_ids[~selected]).all()
    assert (draft.token_targets[NAME].labels == draft.original_ids[selected]).all()
    num_shuffled = 0
    for row in range(200):
        positions = np.flatnonzero(selected[row])
        assert len(positions) % length == 0
        for span in positions.reshape(-1, length):
            assert (np.diff(span) == 1).all()
            assert sorted(draft.input_ids[row, span]) == sorted(draft.original_ids[row, span])
            num_shuffled += (draft.input_ids[row, span] != draft.original_ids[row, span]).any()
    assert num_shuffled > 20


@pytest.mark.parametrize(("rate", "length"), [(0.05, 3), (0.15, 3), (0.1, 5)])
def test_the_mean_rate_is_exact(corpus, rate, length):
    draft = draft_of(whole(corpus), "full_sentences", 64, rows=4000)
    objective(rate, length).make_targets(draft, np.random.default_rng(1))
    result, text = selected_positions(draft).sum(), draft.is_text.sum()
    assert abs(result / text - rate) < 4 * (rate * length / text) ** 0.5


def test_all_orders_of_a_span_are_equally_likely(corpus):
    draft = draft_of(whole(corpus), "full_sentences", 64, rows=3000)
    set_unique_ids(draft)
    objective(0.2).make_targets(draft, np.random.default_rng(2))
    positions = np.flatnonzero(selected_positions(draft)).reshape(-1, 3)
    orders = Counter(map(tuple, (draft.input_ids.reshape(-1)[positions] - draft.original_ids.reshape(-1)[positions[:,
        :1]]).tolist()))
    assert len(orders) == 6 and len(positions) > 5000
    assert all(abs(count / len(positions) - 1 / 6) < 5 * (1 / 6 / len(positions)) ** 0.5 for count in orders.values())


def test_spans_start_at_every_position(corpus):
    """In full rows, every text position but the last two can start a span."""
    draft = draft_of(whole(corpus), "stream", 20, rows=20_000)
    full = draft.lengths == 20
    objective(0.2).make_targets(draft, np.random.default_rng(3))
    start_counts = np.zeros(20)
    rows = selected_positions(draft)
    for start in range(1, 17):
        start_counts[start] = (rows[full, start:start + 3].all(1) & ~rows[full, start - 1]).sum()
    # the start of a span right after another one is not counted, so the counts are only roughly equal
    assert start_counts[1:17].min() > 0.5 * start_counts[1:17].max() > 0 and not rows[:, 0].any()


def test_masked_positions_are_not_shuffled(corpus):
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
    selected = selected_positions(draft)
    assert selected.any() and not (selected & masked.reshape(selected.shape)).any()
    assert (draft.token_targets["vocabulary"].labels == draft.original_ids.reshape(-1)[masked]).all()


def test_the_loss_uses_the_lm_head(corpus):
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


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 40)
    spans, _ = RowSampler(view, packing, 0).next_rows(20)
    batched = Draft(view, spans.select(np.arange(20)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(20)])
    objective(0.3).make_targets(batched, rng)
    after = rng.random((20, 2))
    for row in range(20):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective(0.3).make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert (row_rng.random((1, 2))[0] == after[row]).all()
