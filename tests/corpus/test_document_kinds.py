"""Running text, dialogues and relevance pairs in one corpus: what is stored, and which packing reads which."""

from __future__ import annotations

import numpy as np
import pytest
from mixed_corpora import dialogues, judged, mixed_corpus
from small_corpora import corpus_of

from stemma.atomic_files import sha256
from stemma.corpus import text_batches
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.info import corpus_info, describe_corpus
from stemma.corpus.subset import DOCUMENT_KINDS, CorpusSubset, train_validation_split
from stemma.errors import UserError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    return mixed_corpus(tmp_path_factory.mktemp("kinds"), tokenizer_folder)


def of_kind(corpus: Corpus, kind: str) -> list[int]:
    return np.flatnonzero(CorpusSubset.all_documents(corpus).document_kinds() == DOCUMENT_KINDS.index(kind)).tolist()


def test_every_turn_is_a_sentence_with_its_speaker_at_every_token(corpus):
    talks, view = dialogues(), CorpusSubset.all_documents(corpus)
    result = of_kind(corpus, "roles")
    assert len(result) == len(talks) == corpus.manifest["dialogues"]
    for index, talk in zip(result, talks, strict=True):
        assert corpus.document_text(index) == "\n".join(text.strip() for _, text in talk)
        bounds = view.sentence_bounds(index)
        assert len(bounds) == len(talk) + 1
        names: dict[str, int] = {}
        for (role, text), start, stop in zip(talk, bounds[:-1], bounds[1:], strict=True):
            speaker = names.setdefault(role, len(names))
            assert (corpus.values_between("roles", start, stop) == 1 + speaker).all()
            starts, lengths = corpus.values_between("starts", start, stop), corpus.values_between("lengths", start,
                                                                                                  stop)
            assert corpus.document_text(index)[starts[0]:starts[-1] + lengths[-1]] == text.strip()


def test_a_relevance_pair_is_two_sentences_with_a_label(corpus):
    rows, view = judged(), CorpusSubset.all_documents(corpus)
    result = of_kind(corpus, "relevance")
    assert len(result) == len(rows) == corpus.manifest["judged"] and corpus.manifest["labels"] == ["0", "1", "2"]
    for index, (query, title, label) in zip(result, rows, strict=True):
        assert corpus.document_text(index) == f"{query}\n{title}" and len(view.sentence_bounds(index)) == 3
        assert (corpus.values_between("relevance", *view.document_ranges[index]) == 1 + label).all()


def test_annotations_are_0_in_documents_of_other_kinds(corpus):
    for side in ("roles", "relevance"):
        values = corpus.values_between(side, 0, corpus.num_tokens)
        inside = np.zeros(corpus.num_tokens, bool)
        for index in of_kind(corpus, side):
            inside[slice(*CorpusSubset.all_documents(corpus).document_ranges[index])] = True
        assert ((values > 0) == inside).all() and inside.any() and not inside.all()
    assert corpus.manifest["documents"] == sum(len(of_kind(corpus, kind)) for kind in DOCUMENT_KINDS)


def test_running_text_is_stored_as_in_a_corpus_of_its_own(corpus, tmp_path, tokenizer_folder):
    build_corpus([corpus.path.parent / "text.txt"], tokenizer_folder, tmp_path / "alone", workers=1, sentences="line")
    alone = Corpus.open(tmp_path / "alone")
    assert not {"roles", "relevance"} & set(alone.annotations())
    for name in ("tokens", "word_starts", "starts", "lengths", "capitals"):
        assert (corpus.values_between(name, 0, alone.num_tokens) == alone.values_between(name, 0,
                                                                                         alone.num_tokens)).all()
    assert (np.asarray(alone.sentence_starts[:-1]) == corpus.sentence_starts[:len(alone.sentence_starts) - 1]).all()
    sentences = CorpusSubset.all_documents(alone).documents_for("doc_sentences")
    assert sentences.num_tokens == CorpusSubset.all_documents(corpus).documents_for("stream").num_tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_the_files_do_not_depend_on_workers_or_batches(corpus, tmp_path, tokenizer_folder, monkeypatch, workers):
    monkeypatch.setattr(text_batches, "BATCH_CHARACTERS", 2000)
    again = mixed_corpus(tmp_path, tokenizer_folder, workers=workers)
    for name in ("tokens", "roles", "relevance", "text"):
        file = f"shard-00000/{name}.bin"
        assert sha256(again.path / file) == sha256(corpus.path / file)
    assert again.fingerprint == corpus.fingerprint and again.manifest["dialogues"] == corpus.manifest["dialogues"]


def test_each_packing_reads_its_own_documents(corpus):
    everything = CorpusSubset.all_documents(corpus)
    for packing, kind in (("dialogue", "roles"), ("parallel", "relevance"), ("segment_pair", "running"),
                          ("stream", "running"), ("sentence", "running"), ("contiguous", "running")):
        view = everything.documents_for(packing)
        assert len(view.document_ranges)
        assert (view.document_ranges == everything.document_ranges[of_kind(corpus, kind)]).all()


def test_plain_text_serves_every_packing_but_dialogue(tmp_path, tokenizer_folder):
    plain = corpus_of(tmp_path, [["the clerk reads", "our neighbour forgets"]] * 3, tokenizer_folder)
    everything = CorpusSubset.all_documents(plain)
    assert everything.documents_for("stream") is everything and everything.documents_for("parallel") is everything
    assert len(everything.documents_for("dialogue").document_ranges) == 0


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.3])
def test_every_kind_has_held_out_documents(corpus, fraction):
    training, validation = train_validation_split(corpus, fraction)
    assert training.num_tokens + validation.num_tokens == corpus.num_tokens
    for view in (training, validation):
        assert (np.diff(view.document_ranges[:, 0]) > 0).all()
        assert set(view.document_kinds().tolist()) == {0, 1, 2}
    for packing in ("stream", "dialogue", "parallel"):
        everything = CorpusSubset.all_documents(corpus).documents_for(packing)
        held_out = validation.documents_for(packing)
        longest = (everything.document_ranges[:, 1] - everything.document_ranges[:, 0]).max() / everything.num_tokens
        assert fraction / 2 <= held_out.num_tokens / everything.num_tokens <= fraction + longest


def test_a_corpus_can_hold_dialogues_only(tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, rows=[])
    assert corpus.annotations() == ["capitals", "roles"]
    assert len(CorpusSubset.all_documents(corpus).documents_for("stream").document_ranges) == 0
    assert corpus.manifest["dialogues"] == corpus.manifest["documents"] == 40


def test_turns_and_pairs_without_tokens_are_dropped(tmp_path, tokenizer_folder):
    """BERT's normalizer removes control characters, so such a text has no token."""
    talks = [[("a", "the clerk"), ("b", "\x01"), ("a", "reads")], [("a", "\x01")], [("b", "\x01"), ("a", "a letter")]]
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, talks=talks,
                          rows=[("the clerk", "\x01", 0), ("the clerk", "reads", 1), ("\x01", "reads", 2)])
    view = CorpusSubset.all_documents(corpus)
    assert [len(view.sentence_bounds(index)) - 1 for index in range(len(view.document_ranges))] == [2, 1, 2]
    assert corpus.manifest["dialogues"] == 2 and corpus.manifest["judged"] == 1
    assert corpus.values_at("roles", view.document_ranges[:, 0]).tolist() == [1, 2, 0]  # the first speaker has no token
    assert corpus.values_at("relevance", view.document_ranges[:, 0]).tolist() == [0, 0, 2]


def test_info_describes_the_kinds_of_documents(corpus):
    info = corpus_info(corpus.path)
    assert info["dialogues"] == 40 and info["judged"] == 30 and info["labels"] == ["0", "1", "2"]
    text = describe_corpus(info)
    assert "40 of the documents, a turn a sentence" in text and "query and a title: 0, 1, 2" in text


def test_an_invalid_file_leaves_no_corpus(tmp_path, tokenizer_folder):
    (tmp_path / "d.jsonl").write_text('["bare"]\n')
    with pytest.raises(UserError, match="d.jsonl, line 1 has no role"):
        build_corpus([], tokenizer_folder, tmp_path / "corpus", workers=1, dialogue=[tmp_path / "d.jsonl"])
    assert [file.name for file in tmp_path.iterdir()] == ["d.jsonl"]
