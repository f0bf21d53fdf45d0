"""Dialogue LM: replaced turns come from another dialogue of the same speaker, at the requested rate."""

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
    talks = [*dialogues(40), *dialogues(20, seed=1, most=1)]  # some have a single turn
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
def test_label_1_means_one_turn_from_another_dialogue_of_the_same_speaker(corpus, part, length):
    view = train_validation_split(corpus, 0.3)[part].documents_for("dialogue")
    draft = draft_of(view, "dialogue", length, rows=400)
    before = draft.spans.start.copy()
    objective().make_targets(draft, np.random.default_rng(0))
    spans, labels = draft.spans, draft.row_labels[NAME]
    turns = set(corpus.sentence_starts.tolist())
    inside = {int(start) for index in range(len(view.document_ranges)) for start in view.sentence_bounds(index)[:-1]}
    for row in range(400):
        indices = np.flatnonzero(spans.row == row)
        changed = indices[spans.start[indices] != before[indices]]
        own_dialogue = dialogue_of(view, before[indices])[0]
        if len(indices) == 1:
            assert labels[row] == -1 and not len(changed)
        elif labels[row] == 0:
            assert not len(changed)
        else:
            assert len(changed) == 1 and changed[0] != indices[0]
            assert dialogue_of(view, spans.start[changed])[0] != own_dialogue
            assert int(spans.start[changed[0]]) in inside and int(spans.start[changed[0]]) in turns
            roles = corpus.values_at("roles", np.array([before[changed[0]], spans.start[changed[0]]]))
            assert roles[0] == roles[1]
    assert set(labels.tolist()) == {-1, 0, 1}
    assert (draft.lengths <= length).all()


@pytest.mark.parametrize("fake", [0.0, 0.3, 1.0])
def test_the_fraction_of_replaced_rows_matches_the_setting(view, fake):
    draft = draft_of(view, "dialogue", 64, rows=2000)
    objective(fake).make_targets(draft, np.random.default_rng(1))
    labels = draft.row_labels[NAME][draft.row_labels[NAME] >= 0]
    assert abs(labels.mean() - fake) <= 4 * (fake * (1 - fake) / len(labels)) ** 0.5 and len(labels) > 1000


def test_all_turns_after_the_first_are_replaced_and_all_turns_are_sampled(view):
    draft = draft_of(view, "dialogue", 64, rows=4000)
    before = draft.spans.start.copy()
    objective(1.0).make_targets(draft, np.random.default_rng(2))
    spans = draft.spans
    turn_index = np.arange(len(spans.row)) - np.searchsorted(spans.row, spans.row)
    changed = spans.start != before
    three = np.bincount(spans.row)[spans.row] == 3
    second, third = (changed & three & (turn_index == index) for index in (1, 2))
    assert abs(second.sum() - third.sum()) < 4 * (second.sum() + third.sum()) ** 0.5 and second.any()
    first, last = np.searchsorted(view.corpus.sentence_starts, view.document_ranges).T
    assert len(set(spans.start[changed].tolist())) == (last - first).sum()  # from any position in their dialogue


def test_truncation_does_not_reveal_the_label(view):
    """Replaced and original turns are truncated in the same way."""
    draft = draft_of(view, "dialogue", 20, rows=400)
    objective(1.0).make_targets(draft, np.random.default_rng(3))
    spans, sentences = draft.spans, view.corpus.sentence_starts
    full_lengths = sentences[np.searchsorted(sentences, spans.start, side="right")] - spans.start
    for row in range(400):
        inside = spans.row == row
        room = 20 - 2 - (inside.sum() - 1)
        assert spans.length[inside].sum() > min(room, full_lengths[inside].sum()) - 3


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(view):
    packing = packing_of(view.corpus, "dialogue", 32)
    spans, _ = RowSampler(view, packing, 0).next_rows(40)
    batched = Draft(view, spans.select(np.arange(40)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(40)])
    objective().make_targets(batched, rng)
    after = rng.random((40, 2))
    for row in range(40):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        own_dialogue = PerRowRNG([[1, row]])
        objective().make_targets(alone, own_dialogue)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert alone.row_labels[NAME][0] == batched.row_labels[NAME][row]
        assert (own_dialogue.random((1, 2))[0] == after[row]).all()


def test_without_another_dialogue_of_the_speaker_no_turn_is_sampled(tmp_path, tokenizer_folder):
    talks = [[("a", "the clerk"), ("b", "reads"), ("c", "a letter")], [("a", "our neighbour"), ("b", "forgets")]]
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, talks=talks, rows=[])
    view = CorpusSubset.all_documents(corpus)
    starts = np.asarray(corpus.sentence_starts[:-1])
    result = DialogueIndex(view).sample_other_dialogue(starts, np.full(5, 0.99))
    assert result.tolist() == [starts[3], starts[4], -1, starts[0], starts[1]]


def test_missing_dialogues_are_reported(tmp_path, corpus, corpus_folder, tokenizer_folder):
    assert objective().missing_data(corpus) is None
    assert "--dialogue" in str(objective().missing_data(Corpus.open(corpus_folder)))
    alone = mixed_corpus(tmp_path, tokenizer_folder, talks=dialogues(1), rows=[])
    assert "fewer than two dialogues" in str(objective().missing_data(alone))


def test_rows_without_a_label_do_not_count_in_the_loss(view):
    draft = draft_of(view, "dialogue", 32, rows=50)
    task = objective()
    task.make_targets(draft, np.random.default_rng(0))
    batch = collate(draft)
    labelled = np.flatnonzero(draft.row_labels[NAME] >= 0)
    assert batch.row_targets[NAME].index.tolist() == labelled.tolist() and 0 < len(labelled) < 50
    fraction = float(batch.row_targets[NAME].labels.float().mean())
    expected = -(fraction * np.log(fraction) + (1 - fraction) * np.log(1 - fraction))
    assert task.baseline(batch, np.zeros(1))[NAME] == pytest.approx(expected)

    class SumNetwork:
        """A network whose loss is the sum of its inputs."""

        def pool(self, hidden):
            return hidden

        def head(self, name):
            assert name == "dialogue_lm"
            return self

        def loss(self, pooled, labels, total):
            return pooled.sum() + labels.sum() + total

    hidden = {"encoder": torch.arange(50.0)}
    result = task.loss(SumNetwork(), hidden, batch)[NAME]
    assert float(result) == labelled.sum() + draft.row_labels[NAME][labelled].sum() + len(labelled)
