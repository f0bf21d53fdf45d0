
import numpy as np
import pytest
import torch
from small_corpora import corpus_of, draft_of, packing_of, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.objectives import build_network, build_objectives, collate
from stemma.objectives.sentence_order import SentenceOrder, SentenceOrderSettings

NAME = "sentence_order"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def objective(swapped: float = 0.5, other: float = 0.0) -> SentenceOrder:
    return SentenceOrder(NAME, SentenceOrderSettings(kind=NAME, swapped=swapped, other=other))


def document_of(view: CorpusSubset, offsets: np.ndarray) -> int:
    result = np.unique(np.searchsorted(view.document_ranges[:, 0], offsets, side="right") - 1)
    assert len(result) == 1 and (offsets < view.document_ranges[result[0], 1]).all(), "text from outside the view"
    return int(result[0])


def parts(draft: Draft, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Corpus offsets of A and of B."""
    offsets = draft.corpus_offsets[row]
    is_text, segments = offsets >= 0, draft.segment_ids[row]
    return offsets[is_text & (segments == 0)], offsets[is_text & (segments == 1)]


@pytest.mark.parametrize("kind", ["segment_pair", "sentence_pair"])
@pytest.mark.parametrize(("swapped", "other"), [(0.5, 0.0), (1 / 3, 1 / 3)])
def test_labels_match_the_order_of_the_segments(corpus, kind, swapped, other):
    view = train_validation_split(corpus, 0.3)[0]
    draft = draft_of(view, kind, 40, rows=400, short=0.2)
    alone = draft.spans.part_lengths(1) == 0
    objective(swapped, other).make_targets(draft, np.random.default_rng(0))
    labels = draft.row_labels[NAME]
    assert alone.any() and set(labels[alone]) == ({2} if other else {-1})
    assert set(labels[~alone]) == ({0, 1, 2} if other else {0, 1})
    for row in range(400):
        a, b = parts(draft, row)
        if labels[row] == -1:
            assert not len(b)
            continue
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        assert (document_of(view, a) != document_of(view, b)) == (labels[row] == 2)
        if labels[row] < 2:
            assert (a[-1] < b[0]) == (labels[row] == 0) and (b[-1] < a[0]) == (labels[row] == 1)
    assert (draft.lengths <= 40).all()


@pytest.mark.parametrize(("swapped", "other"), [(0.5, 0.0), (0.1, 0.0), (1 / 3, 1 / 3), (0.2, 0.7)])
def test_the_label_frequencies_match_the_settings(corpus, swapped, other):
    draft = draft_of(whole(corpus), "segment_pair", 24, rows=3000)
    paired = draft.spans.part_lengths(1) > 0
    objective(swapped, other).make_targets(draft, np.random.default_rng(1))
    result = draft.row_labels[NAME][paired]
    for label, fraction in enumerate([1 - swapped - other, swapped, other]):
        assert abs((result == label).mean() - fraction) <= 4 * (fraction * (1 - fraction) / len(result)) ** 0.5


def test_a_swapped_row_has_the_same_tokens(corpus):
    in_order = draft_of(whole(corpus), "segment_pair", 60, rows=50)
    reversed_order = draft_of(whole(corpus), "segment_pair", 60, rows=50)
    objective(0.0).make_targets(in_order, np.random.default_rng(2))
    objective(1.0).make_targets(reversed_order, np.random.default_rng(2))
    checked = 0
    for row in range(50):
        (a, b), (second, first) = parts(in_order, row), parts(reversed_order, row)
        if reversed_order.row_labels[NAME][row] == 1 and len(a) + len(b) < 57:  # nothing was truncated
            assert a.tolist() == first.tolist() and b.tolist() == second.tolist()
            checked += 1
    assert checked > 10


def test_without_another_document_label_2_is_never_used(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads", "our neighbour forgets", "every scribe copies"] * 4],
                       tokenizer_folder)
    draft = draft_of(whole(corpus), "sentence_pair", 20, rows=60)
    objective(1 / 3, 1 / 3).make_targets(draft, np.random.default_rng(0))
    assert set(draft.row_labels[NAME]) == {0, 1}


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 24, short=0.2)
    spans, _ = RowSampler(view, packing, 0).next_rows(30)
    batched = Draft(view, spans.select(np.arange(30)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(30)])
    objective(0.3, 0.4).make_targets(batched, rng)
    after = rng.random((30, 2))
    for row in range(30):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective(0.3, 0.4).make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert alone.row_labels[NAME][0] == batched.row_labels[NAME][row]
        assert (row_rng.random((1, 2))[0] == after[row]).all()


def test_rows_without_a_label_are_not_scored(corpus):
    """The loss is the mean over the other rows, also in slices."""
    recipe = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence",
                                                 "objective.sentence_order.swapped=0.5",
                                          "network.dropout=0.0", "network.attention.dropout=0.0"])
    order = build_objectives(recipe)[0]
    network = build_network(recipe, corpus.tokenizer.vocab_size).eval()
    draft = draft_of(whole(corpus), "sentence_pair", 40, rows=40)
    order.make_targets(draft, np.random.default_rng(0))
    labels = draft.row_labels[NAME]
    batch = collate(draft)
    target = batch.row_targets[NAME]
    assert (labels == -1).any() and target.index.tolist() == np.flatnonzero(labels >= 0).tolist()
    assert target.denominator == (labels >= 0).sum()
    with torch.no_grad():
        hidden = network(batch.streams)
        scores = network.head(NAME)(network.pool(hidden["encoder"])).log_softmax(-1)
        expected = np.mean([-float(scores[row, label]) for row, label in enumerate(labels) if label >= 0])
        assert float(order.loss(network, hidden, batch)[NAME]) == pytest.approx(expected, rel=1e-5)
        slices = [order.loss(network, network(part.streams), part)[NAME] for part in batch.slices(7)]
        assert float(sum(slices)) == pytest.approx(expected, rel=1e-5)
    probabilities = np.bincount(labels[labels >= 0]) / target.denominator
    assert order.baseline(batch, np.zeros(1))[NAME] == pytest.approx(-(probabilities * np.log(probabilities)).sum())


def test_a_batch_without_labels_has_zero_loss(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads a letter"], ["our neighbour forgets"]], tokenizer_folder)
    recipe = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence",
                                                 "objective.sentence_order.swapped=0.5"])
    order = build_objectives(recipe)[0]
    draft = draft_of(whole(corpus), "sentence_pair", 20, rows=4)
    order.make_targets(draft, np.random.default_rng(0))
    batch = collate(draft)
    network = build_network(recipe, corpus.tokenizer.vocab_size)
    loss = order.loss(network, network(batch.streams), batch)[NAME]
    loss.backward()
    assert loss.item() == 0 == order.baseline(batch, np.zeros(1))[NAME]
