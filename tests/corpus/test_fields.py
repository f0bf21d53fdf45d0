"""Float fields: vectors per token or document, stored in the shards, validated, and aligned with the rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import stemma
from small_corpora import corpus_of, draft_of, whole

from stemma.corpus.annotate import annotate
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.errors import CorruptFileError, UserError

DOCUMENTS = [["The old clerk reads a letter.", "Our neighbour forgets the margin notes."],
             ["The printer repairs seven pages by the window."],
             ["A young reader numbers one missing leaf.", "The librarian collects an older manuscript."]]


@pytest.fixture
def corpus(tmp_path, tokenizer_folder) -> Corpus:
    corpus = corpus_of(tmp_path, DOCUMENTS, tokenizer_folder, shard_tokens=10)
    assert len(corpus.manifest["shards"]) > 1
    return corpus


def random_values(rows: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, size)).astype(np.float32)


def test_fields_of_tokens_and_documents_are_stored_across_shards(corpus, tmp_path):
    token_values = random_values(corpus.num_tokens, 3)
    document_values = random_values(len(DOCUMENTS), 2).astype(np.float64)
    np.save(tmp_path / "tokens.npy", token_values)
    before = corpus.fingerprint
    record = annotate(corpus.path, token_fields={"vectors": tmp_path / "tokens.npy",
                                               "place": np.arange(corpus.num_tokens)},
                    document_fields={"topics": document_values})
    assert record["fields"]["vectors"] | {"sha256": ""} == {"per": "token", "size": 3, "type": "<f4",
                                                          "file": "tokens.npy", "sha256": ""}
    annotated = Corpus.open(corpus.path)
    assert annotated.fingerprint == before and annotated.annotations() == corpus.annotations()
    index = np.random.default_rng(1).permutation(corpus.num_tokens).reshape(1, -1)
    assert np.array_equal(annotated.field("vectors").at(index), token_values[index])
    assert annotated.field("place").at(index)[0, :, 0].tolist() == index[0].tolist()
    owner = np.searchsorted(annotated.document_starts, index, side="right") - 1
    assert np.array_equal(annotated.field("topics").at(index), document_values.astype(np.float32)[owner])
    assert (annotated.field("topics").per, annotated.field("topics").size) == ("document", 2)


def test_fields_are_aligned_with_the_rows_and_0_at_special_tokens(corpus):
    annotate(corpus.path, token_fields={"place": np.arange(1, corpus.num_tokens + 1)},
             document_fields={"topic": np.arange(1, len(DOCUMENTS) + 1)})
    view = whole(Corpus.open(corpus.path))
    forward = draft_of(view, "full_sentences", 24, rows=4)
    backward = Draft(view, forward.spans, forward.template, reversed_rows=np.array([True, False, True, False]))
    for draft in (forward, backward):
        values = draft.field("place")
        assert values.shape == (4, 24, 1) and values.dtype == np.float32 and draft.is_text.any()
        assert np.array_equal(values[..., 0], draft.corpus_offsets + 1)  # -1 at special tokens and padding
        document = np.searchsorted(view.corpus.document_starts, draft.corpus_offsets, side="right")
        assert np.array_equal(draft.field("topic")[..., 0], np.where(draft.is_text, document, 0))
    assert not np.array_equal(forward.field("place"), backward.field("place"))


def test_a_field_is_replaced_only_with_overwrite_and_leaves_no_files(corpus):
    annotate(corpus.path, token_fields={"topic": random_values(corpus.num_tokens, 2)})
    first = Corpus.open(corpus.path).annotation_digest("topic")
    with pytest.raises(UserError, match="has topic already; add --overwrite"):
        annotate(corpus.path, document_fields={"topic": random_values(3, 1)})
    annotate(corpus.path, document_fields={"topic": random_values(3, 1)}, overwrite=True)
    annotated = Corpus.open(corpus.path)
    assert annotated.annotation_digest("topic") not in (first, None) and annotated.annotation_digest("other") is None
    assert [path.relative_to(corpus.path).as_posix() for path in corpus.path.rglob("field.*")] == ["field.topic.bin"]
    assert set(json.loads((corpus.path / "checksums.json").read_text())) == {
        path.relative_to(corpus.path).as_posix() for path in corpus.path.rglob("*")
        if path.is_file() and path.name != "checksums.json"}


def test_all_problems_are_reported_at_once(corpus, tmp_path):
    np.save(tmp_path / "words.npy", np.array(["a"] * corpus.num_tokens))
    (tmp_path / "text.npy").write_text("no numbers")
    bad = random_values(corpus.num_tokens, 2)
    bad[5, 1] = np.inf
    with pytest.raises(UserError) as error:
        annotate(corpus.path, token_fields={
            "short": random_values(3, 1), "bad": bad, "large": np.full(corpus.num_tokens, 1e300),
            "words": tmp_path / "words.npy",
            "text_": tmp_path / "text.npy", "absent": tmp_path / "absent.npy",
            "tokens": random_values(corpus.num_tokens, 1),
            "My field": random_values(corpus.num_tokens, 1), "none": np.zeros((corpus.num_tokens, 0)),
            "good": random_values(corpus.num_tokens, 1)},
            document_fields={"phrases": random_values(3, 1), "good": random_values(3, 1)})
    message = str(error.value)
    assert len(error.value.problems) == 12
    for words in (f"has the shape (3, 1), and the corpus has {corpus.num_tokens} tokens", "row 5 is not finite",
                  "row 0 is not finite (or beyond float32)", "must hold numbers, not <U1", "is not a .npy file",
                  "there is no such file", "is the name of another array", "lower-case letters", "0 numbers a token",
                  "is given twice"):
        assert words in message, words
    assert "fields" not in Corpus.open(corpus.path).manifest
    with pytest.raises(UserError, match='has no field "topic"'):
        corpus.field("topic")


def test_a_damaged_field_is_refused(corpus):
    annotate(corpus.path, token_fields={"vectors": random_values(corpus.num_tokens, 2)})
    file = next(corpus.path.glob("shard-*/field.vectors.bin"))
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(CorruptFileError):
        Corpus.open(corpus.path)
    file.write_bytes(content[:-4])
    with pytest.raises(CorruptFileError, match="bytes instead of"):
        Corpus.open(corpus.path, verify=False)


def test_the_command_adds_fields_and_info_lists_them(corpus, tmp_path):
    np.save(tmp_path / "v.npy", random_values(corpus.num_tokens, 4))
    np.save(tmp_path / "d.npy", random_values(3, 1)[:, 0])
    done = stemma("corpus", "annotate", corpus.path, "--token-field", f"vectors={tmp_path / 'v.npy'}",
                  "--document-field", f"score={tmp_path / 'd.npy'}")
    assert done.code == 0, done.err
    assert "vectors: 4 numbers a token" in done.out and "score: 1 number a document" in done.out
    assert "vectors (4 numbers a token), score (1 number a document)" in stemma("corpus", "info", corpus.path).out
    for options, message in ((["--token-field", "vectors"], "must be NAME=FILE.npy"),
                        (["--token-field", "a=b.npy", "--token-field", "a=c.npy"], "a is given twice"),
                        (["--token-field", f"vectors={tmp_path / 'v.npy'}"], "has vectors already; add --overwrite")):
        refused = stemma("corpus", "annotate", corpus.path, *options)
        assert refused.code == 2 and message in refused.err, refused.err
