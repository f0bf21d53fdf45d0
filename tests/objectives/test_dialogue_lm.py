"""Fake turns: of another dialogue, by the same speaker, as often as asked for, and not told by the shape of a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mixed_corpora import dialogues, mixed_corpus
from small_corpora import draft_of, packing_of

from stemma.corpus.corpus import Corpus
from stemma.corpus.dialogue_index import DialogueIndex
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.objectives import collate
from stemma.objectives.dialogue_lm import DialogueLM, DialogueLMSettings

NAME = "talk"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    talks = [*dialogues(40), *dialogues(20, seed=1, most=1)]  # some of a single turn
    return mixed_corpus(tmp_path_factory.mktemp("talk"), tokenizer_folder, talks=talks)


@pytest.fixture(scope="module")
def view(corpus) -> CorpusSubset:
    return CorpusSubset.all_documents(corpus).documents_for("dialogue")


def objective(fake: float = 0.5) -> DialogueLM:
    return DialogueLM(NAME, DialogueLMSettings(kind="dialogue_lm", fake=fake))


def dialogue_of(view: CorpusSubset, start: np.ndarray) -> np.ndarray:
    return np.searchsorted(view.document_ranges[:, 0], start, side="right") - 1


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("length", [16, 64])
def test_a_one_has_one_turn_of_another_dialogue_by_the_same_speaker(corpus, part, length):
    view = train_validation_split(corpus, 0.3)[part].documents_for("dialogue")
    draft = draft_of(view, "dialogue", length, rows=400)
    before = draft.spans.start.copy()
    objective().make_targets(draft, np.random.default_rng(0))
    pieces, labels = draft.spans, draft.row_labels[NAME]
    turns = set(corpus.sentence_starts.tolist())
    inside = {int(start) for index in range(len(view.document_ranges)) for start in view.sentence_bounds(index)[:-1]}
    for row in range(400):
        mine = np.flatnonzero(pieces.row == row)
        changed = mine[pieces.start[mine] != before[mine]]
        own = dialogue_of(view, before[mine])[0]
        if len(mine) == 1:
            assert labels[row] == -1 and not len(changed)
        elif labels[row] == 0:
            assert not len(changed)
        else:
            assert len(changed) == 1 and changed[0] != mine[0]
            assert dialogue_of(view, pieces.start[changed])[0] != own
            assert int(pieces.start[changed[0]]) in inside and int(pieces.start[changed[0]]) in turns
            roles = corpus.values_at("roles", np.array([before[changed[0]], pieces.start[changed[0]]]))
            assert roles[0] == roles[1]
    assert set(labels.tolist()) == {-1, 0, 1}
    assert (draft.lengths <= length).all()


@pytest.mark.parametrize("fake", [0.0, 0.3, 1.0])
def test_the_rate_is_the_one_asked_for(view, fake):
    draft = draft_of(view, "dialogue", 64, rows=2000)
    objective(fake).make_targets(draft, np.random.default_rng(1))
    labels = draft.row_labels[NAME][draft.row_labels[NAME] >= 0]
    assert abs(labels.mean() - fake) <= 4 * (fake * (1 - fake) / len(labels)) ** 0.5 and len(labels) > 1000


def test_every_turn_after_the_first_and_every_other_turn_is_sampled(view):
    draft = draft_of(view, "dialogue", 64, rows=4000)
    before = draft.spans.start.copy()
    objective(1.0).make_targets(draft, np.random.default_rng(2))
    pieces = draft.spans
    place = np.arange(len(pieces.row)) - np.searchsorted(pieces.row, pieces.row)
    changed = pieces.start != before
    three = np.bincount(pieces.row)[pieces.row] == 3
    second, third = (changed & three & (place == number) for number in (1, 2))
    assert abs(second.sum() - third.sum()) < 4 * (second.sum() + third.sum()) ** 0.5 and second.any()
    first, last = np.searchsorted(view.corpus.sentence_starts, view.document_ranges).T
    assert len(set(pieces.start[changed].tolist())) == (last - first).sum()  # wherever it stood in its own dialogue


def test_cut_rows_do_not_tell_a_true_turn_by_what_is_left_of_the_others(view):
    """All turns are cut from their whole length, fake or not."""
    draft = draft_of(view, "dialogue", 20, rows=400)
    objective(1.0).make_targets(draft, np.random.default_rng(3))
    pieces, sentences = draft.spans, view.corpus.sentence_starts
    whole = sentences[np.searchsorted(sentences, pieces.start, side="right")] - pieces.start
    for row in range(400):
        inside = pieces.row == row
        room = 20 - 2 - (inside.sum() - 1)
        assert pieces.length[inside].sum() > min(room, whole[inside].sum()) - 3


def test_a_row_with_its_own_randomness_is_the_same_in_any_batch(view):
    packing = packing_of(view.corpus, "dialogue", 32)
    pieces, _ = RowSampler(view, packing, 0).next_rows(40)
    together = Draft(view, pieces.select(np.arange(40)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(40)])
    objective().make_targets(together, rng)
    after = rng.random((40, 2))
    for row in range(40):
        alone = Draft(view, pieces.select(np.array([row])), packing.template)
        own = PerRowRNG([[1, row]])
        objective().make_targets(alone, own)
        assert (alone.input_ids[0] == together.input_ids[row]).all()
        assert alone.row_labels[NAME][0] == together.row_labels[NAME][row]
        assert (own.random((1, 2))[0] == after[row]).all()


def test_without_another_dialogue_of_the_speaker_no_turn_is_replaced(tmp_path, tokenizer_folder):
    talks = [[("a", "the clerk"), ("b", "reads"), ("c", "a letter")], [("a", "our neighbour"), ("b", "forgets")]]
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, talks=talks, rows=[])
    view = CorpusSubset.all_documents(corpus)
    starts = np.asarray(corpus.sentence_starts[:-1])
    result = DialogueIndex(view).sample_other_dialogue(starts, np.full(5, 0.99))
    assert result.tolist() == [starts[3], starts[4], -1, starts[0], starts[1]]


def test_what_it_lacks(tmp_path, corpus, corpus_folder, tokenizer_folder):
    assert objective().missing_data(corpus) is None
    assert "--dialogue" in str(objective().missing_data(Corpus.open(corpus_folder)))
    alone = mixed_corpus(tmp_path, tokenizer_folder, talks=dialogues(1), rows=[])
    assert "fewer than two dialogues" in str(objective().missing_data(alone))


def test_rows_without_a_label_do_not_count_in_the_loss(view):
    draft = draft_of(view, "dialogue", 32, rows=50)
    chosen = objective()
    chosen.make_targets(draft, np.random.default_rng(0))
    batch = collate(draft)
    asked = np.flatnonzero(draft.row_labels[NAME] >= 0)
    assert batch.row_targets[NAME].index.tolist() == asked.tolist() and 0 < len(asked) < 50
    share = float(batch.row_targets[NAME].labels.float().mean())
    expected = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert chosen.baseline(batch, np.zeros(1))[NAME] == pytest.approx(expected)

    class Told:
        """A network that pools each row to its number."""

        def pool(self, hidden):
            return hidden

        def head(self, name):
            assert name == "dialogue_lm"
            return self

        def loss(self, pooled, labels, total):
            return pooled.sum() + labels.sum() + total

    hidden = {"encoder": torch.arange(50.0)}
    result = chosen.loss(Told(), hidden, batch)[NAME]
    assert float(result) == asked.sum() + draft.row_labels[NAME][asked].sum() + len(asked)
