"""Token classification: whether a token is capitalized, and whether it occurs elsewhere in its document."""

import numpy as np
import pytest
import torch
from small_corpora import corpus_of, draft_of, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.objectives import build_network, build_objectives, collate
from stemma.objectives.capitalisation import Capitalisation, CapitalisationSettings
from stemma.objectives.token_document_relation import TokenDocumentRelation, TokenDocumentRelationSettings
from stemma.text.train_tokenizer import train_tokenizer

CASE, RELATION = "capitalisation", "token_document_relation"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def capitalisation() -> Capitalisation:
    return Capitalisation(CASE, CapitalisationSettings(kind=CASE))


def relation(reach: int = 8192) -> TokenDocumentRelation:
    return TokenDocumentRelation(RELATION, TokenDocumentRelationSettings(kind=RELATION, reach=reach))


def labels_of(draft, name: str) -> np.ndarray:
    """(rows, length) labels; -1 at positions that are not scored."""
    scored = draft.token_targets[name]
    result = np.full(draft.is_text.size, -1)
    result[scored.index] = scored.labels
    return result.reshape(draft.is_text.shape)


@pytest.mark.parametrize("kind", ["segment_pair", "full_sentences", "stream"])
def test_capitalisation_labels_match_the_text(corpus, kind):
    draft = draft_of(whole(corpus), kind, 40, rows=30)
    capitalisation().make_targets(draft, np.random.default_rng(0))
    result = labels_of(draft, CASE)
    assert ((result >= 0) == draft.is_text).all() and 0 < (result == 1).sum() < (result == 0).sum()
    for row, position in zip(*np.nonzero(draft.is_text), strict=True):
        source = draft.corpus_offsets[row, position]
        document = int(np.searchsorted(corpus.document_starts, source, side="right")) - 1
        character = corpus.document_text(document)[corpus.values_at("starts", np.array(source))]
        assert result[row, position] == character.isupper()


def test_masked_positions_have_no_token_labels(corpus):
    recipe = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence",
                                                 "objective.capitalisation.weight=1.0",
                                          "objective.masked_lm.dynamic=true"])
    masked, case = build_objectives(recipe)
    draft = draft_of(whole(corpus), "segment_pair", 40, rows=50)
    rng = np.random.default_rng(0)
    masked.make_targets(draft, rng)
    case.make_targets(draft, rng)
    changed = draft.input_ids != draft.original_ids
    assert changed.any() and ((labels_of(draft, CASE) >= 0) == (draft.is_text & ~changed)).all()


def test_the_loss_is_the_mean_over_the_scored_positions(corpus):
    recipe = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence",
                                                 "objective.capitalisation.weight=1.0",
                                          "network.dropout=0.0", "network.attention.dropout=0.0"])
    case = build_objectives(recipe)[1]
    draft = draft_of(whole(corpus), "segment_pair", 40, rows=6)
    case.make_targets(draft, np.random.default_rng(0))
    batch, network = collate(draft), build_network(recipe, corpus.tokenizer.vocab_size).eval()
    labels = torch.from_numpy(labels_of(draft, CASE)[:, :batch.streams["encoder"].input_ids.shape[1]])
    with torch.no_grad():
        hidden = network(batch.streams)
        scores = network.head(CASE)(hidden["encoder"])
        expected = torch.nn.functional.cross_entropy(scores[labels >= 0], labels[labels >= 0])
        assert case.loss(network, hidden, batch)[CASE].item() == pytest.approx(expected.item(), rel=1e-5)
    fraction = (labels == 1).sum().item() / (labels >= 0).sum().item()
    assert case.baseline(batch, np.zeros(1))[CASE] == pytest.approx(
        -(fraction * np.log(fraction) + (1 - fraction) * np.log(1 - fraction)))


def test_unsuitable_corpora_are_reported_by_capitalisation(corpus, tmp_path, tokenizer_folder, text_file):
    assert capitalisation().missing_data(corpus) is None
    small = corpus_of(tmp_path / "small", [["the clerk reads", "a letter"]], tokenizer_folder)
    assert capitalisation().missing_data(small) == "the text has no capital letter"
    train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=False).save(tmp_path / "cased")
    cased = corpus_of(tmp_path / "large", [["The clerk reads", "A letter"]], tmp_path / "cased")
    assert "keeps capitals" in capitalisation().missing_data(cased)


def test_a_missing_annotation_is_reported_with_the_command_that_adds_it(corpus, monkeypatch):
    monkeypatch.setattr(Corpus, "annotations", lambda self: [])
    assert capitalisation().missing_data(corpus) == 'the corpus has no "capitals"; `stemma corpus build` makes them'
    assert relation().missing_data(corpus) is None


@pytest.mark.parametrize("reach", [1, 10, 37, 8192])
def test_relation_labels_match_a_search_around_the_row(corpus, reach):
    """With a large reach, in the whole document."""
    view = whole(corpus)
    draft = draft_of(view, "doc_sentences", 30, rows=80)
    relation(reach).make_targets(draft, np.random.default_rng(0))
    result = labels_of(draft, RELATION)
    assert ((result >= 0) == draft.is_text).all()
    all_labels = set()
    for row in range(80):
        text = draft.corpus_offsets[row][draft.is_text[row]]
        begin, end = next((b, e) for b, e in view.document_ranges.tolist() if b <= text[0] < e)
        outside = [position for position in range(begin, end) if not text[0] <= position <= text[-1]]
        middle = text[0]
        before, behind = ([p for p in outside if p < middle][::-1], [p for p in outside if p > middle])
        half = reach // 2
        window = [*before[:max(half, reach - len(behind))], *behind[:max(reach - half, reach - len(before))]]
        tokens_around = set(corpus.values_at("tokens", np.array(sorted(window), dtype=np.int64)).tolist())
        expected = [int(token in tokens_around) for token in draft.original_ids[row][draft.is_text[row]].tolist()]
        assert result[row][draft.is_text[row]].tolist() == expected
        all_labels |= set(expected)
    assert all_labels == {0, 1}


def test_sentences_outside_the_subset_are_ignored(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads", "a letter"], ["a letter", "the clerk reads"]], tokenizer_folder)
    draft = draft_of(whole(corpus), "doc_sentences", 30, rows=2)
    relation().make_targets(draft, np.random.default_rng(0))
    assert (draft.token_targets[RELATION].labels == 0).all()  # each row is a whole document
