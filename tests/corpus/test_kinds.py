"""Running text, dialogues, and queries with titles in one corpus: what is stored, and who reads what."""

from __future__ import annotations

import numpy as np
import pytest
from making import corpus_of
from talking import dialogues, judged, mixed_corpus

from stemma.corpus import batches
from stemma.corpus.build import build_corpus
from stemma.corpus.info import corpus_info, describe
from stemma.corpus.shards import Corpus
from stemma.corpus.view import KINDS, View, split
from stemma.errors import UserError
from stemma.files import sha256


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    return mixed_corpus(tmp_path_factory.mktemp("kinds"), tokenizer_folder)


def of_kind(corpus: Corpus, kind: str) -> list[int]:
    return np.flatnonzero(View.whole(corpus).kinds() == KINDS.index(kind)).tolist()


def test_every_turn_is_a_sentence_with_its_speaker_at_every_token(corpus):
    talks, view = dialogues(), View.whole(corpus)
    found = of_kind(corpus, "roles")
    assert len(found) == len(talks) == corpus.manifest["dialogues"]
    for number, talk in zip(found, talks, strict=True):
        assert corpus.text(number) == "\n".join(text.strip() for _, text in talk)
        bounds = view.bounds(number)
        assert len(bounds) == len(talk) + 1
        names: dict[str, int] = {}
        for (role, text), start, stop in zip(talk, bounds[:-1], bounds[1:], strict=True):
            speaker = names.setdefault(role, len(names))
            assert (corpus.slice("roles", start, stop) == 1 + speaker).all()
            starts, lengths = corpus.slice("starts", start, stop), corpus.slice("lengths", start, stop)
            assert corpus.text(number)[starts[0]:starts[-1] + lengths[-1]] == text.strip()


def test_query_and_title_are_two_sentences_with_their_label(corpus):
    rows, view = judged(), View.whole(corpus)
    found = of_kind(corpus, "relevance")
    assert len(found) == len(rows) == corpus.manifest["judged"] and corpus.manifest["labels"] == ["0", "1", "2"]
    for number, (query, title, label) in zip(found, rows, strict=True):
        assert corpus.text(number) == f"{query}\n{title}" and len(view.bounds(number)) == 3
        assert (corpus.slice("relevance", *view.documents[number]) == 1 + label).all()


def test_the_arrays_are_nought_elsewhere(corpus):
    for side in ("roles", "relevance"):
        values = corpus.slice(side, 0, corpus.tokens)
        inside = np.zeros(corpus.tokens, bool)
        for number in of_kind(corpus, side):
            inside[slice(*View.whole(corpus).documents[number])] = True
        assert ((values > 0) == inside).all() and inside.any() and not inside.all()
    assert corpus.manifest["documents"] == sum(len(of_kind(corpus, kind)) for kind in KINDS)


def test_running_text_is_the_same_as_alone(corpus, tmp_path, tokenizer_folder):
    build_corpus([corpus.path.parent / "text.txt"], tokenizer_folder, tmp_path / "alone", workers=1, sentences="line")
    alone = Corpus.open(tmp_path / "alone")
    assert not {"roles", "relevance"} & set(alone.sides())
    for name in ("tokens", "word_starts", "starts", "lengths", "capitals"):
        assert (corpus.slice(name, 0, alone.tokens) == alone.slice(name, 0, alone.tokens)).all()
    assert (np.asarray(alone.sentences[:-1]) == corpus.sentences[:len(alone.sentences) - 1]).all()
    assert View.whole(alone).read_by("doc_sentences").tokens == View.whole(corpus).read_by("stream").tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_the_files_do_not_hang_on_the_workers_or_batches(corpus, tmp_path, tokenizer_folder, monkeypatch, workers):
    monkeypatch.setattr(batches, "BATCH_CHARACTERS", 2000)
    again = mixed_corpus(tmp_path, tokenizer_folder, workers=workers)
    for name in ("tokens", "roles", "relevance", "text"):
        file = f"shard-00000/{name}.bin"
        assert sha256(again.path / file) == sha256(corpus.path / file)
    assert again.fingerprint == corpus.fingerprint and again.manifest["dialogues"] == corpus.manifest["dialogues"]


def test_each_packing_reads_its_own_documents(corpus):
    whole = View.whole(corpus)
    for packing, kind in (("dialogue", "roles"), ("parallel", "relevance"), ("segment_pair", "running"),
                          ("stream", "running"), ("sentence", "running"), ("contiguous", "running")):
        view = whole.read_by(packing)
        assert (view.documents == whole.documents[of_kind(corpus, kind)]).all() and len(view.documents)


def test_a_corpus_without_kinds_is_read_whole_but_holds_no_dialogue(tmp_path, tokenizer_folder):
    plain = corpus_of(tmp_path, [["the clerk reads", "our neighbour forgets"]] * 3, tokenizer_folder)
    whole = View.whole(plain)
    assert whole.read_by("stream") is whole and whole.read_by("parallel") is whole
    assert len(whole.read_by("dialogue").documents) == 0


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_every_kind_has_held_out_documents(corpus, share):
    training, validation = split(corpus, share)
    assert training.tokens + validation.tokens == corpus.tokens
    for view in (training, validation):
        assert (np.diff(view.documents[:, 0]) > 0).all()
        assert set(view.kinds().tolist()) == {0, 1, 2}
    for packing in ("stream", "dialogue", "parallel"):
        whole, held = View.whole(corpus).read_by(packing), validation.read_by(packing)
        longest = (whole.documents[:, 1] - whole.documents[:, 0]).max() / whole.tokens
        assert share / 2 <= held.tokens / whole.tokens <= share + longest


def test_dialogues_alone_make_a_corpus(tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, rows=[])
    assert corpus.sides() == ["capitals", "roles"] and len(View.whole(corpus).read_by("stream").documents) == 0
    assert corpus.manifest["dialogues"] == corpus.manifest["documents"] == 40


def test_parts_without_a_token(tmp_path, tokenizer_folder):
    """A control character is a text that BERT's cleaning leaves nothing of."""
    talks = [[("a", "the clerk"), ("b", "\x01"), ("a", "reads")], [("a", "\x01")], [("b", "\x01"), ("a", "a letter")]]
    corpus = mixed_corpus(tmp_path, tokenizer_folder, text=False, talks=talks,
                          rows=[("the clerk", "\x01", 0), ("the clerk", "reads", 1), ("\x01", "reads", 2)])
    view = View.whole(corpus)
    assert [len(view.bounds(number)) - 1 for number in range(len(view.documents))] == [2, 1, 2]
    assert corpus.manifest["dialogues"] == 2 and corpus.manifest["judged"] == 1
    assert corpus.take("roles", view.documents[:, 0]).tolist() == [1, 2, 0]  # who spoke first said nothing
    assert corpus.take("relevance", view.documents[:, 0]).tolist() == [0, 0, 2]


def test_what_is_in_it_is_told(corpus):
    info = corpus_info(corpus.path)
    assert info["dialogues"] == 40 and info["judged"] == 30 and info["labels"] == ["0", "1", "2"]
    assert "40 of the documents, a turn a sentence" in describe(info) and "query and a title: 0, 1, 2" in describe(info)


def test_a_bad_file_leaves_nothing_behind(tmp_path, tokenizer_folder):
    (tmp_path / "d.jsonl").write_text('["bare"]\n')
    with pytest.raises(UserError, match="d.jsonl, line 1 has no role"):
        build_corpus([], tokenizer_folder, tmp_path / "corpus", workers=1, dialogue=[tmp_path / "d.jsonl"])
    assert [file.name for file in tmp_path.iterdir()] == ["d.jsonl"]
