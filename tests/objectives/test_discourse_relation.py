from pathlib import Path

import numpy as np
import pytest
from small_corpora import corpus_of, draft_of, packing_of, whole

from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset
from stemma.objectives.connectives import CHINESE, CONNECTIVES
from stemma.objectives.discourse_relation import DiscourseRelation, DiscourseRelationSettings, find_connectives
from stemma.text.train_tokenizer import train_tokenizer

NAME = "discourse_relation"
ENGLISH = [
    ["However, nobody came.", "The clerk read a letter.", "However, the printer forgot it.", "He slept."],
    ["Our neighbour waits.", "But the reader left.", "In short, the soldier sold the sofa.", "Solder melts."],
    ["A page is missing.", "Butter was there.", "So the scribe copied it.", "In addition the margin was cut."],
]
EXPECTED = {("However,", "the printer forgot it."), ("But", "the reader left."), ("So", "the scribe copied it."),
            ("In short,", "the soldier sold the sofa."), ("In addition", "the margin was cut.")}
HAN = [["老师来了。", "但是，学生没有来。", "因此他走了。"],
       ["天气很好。", "但他没有出去。", "但丁写诗。", "其实，我们都知道。"]]
HAN_EXPECTED = {("但是，", "学生没有来。"), ("因此", "他走了。"), ("但", "他没有出去。"), ("其实，", "我们都知道。")}


def objective(connectives: list[str] | None = None) -> DiscourseRelation:
    return DiscourseRelation(NAME, DiscourseRelationSettings(kind=NAME, connectives=connectives or []))


def build(folder: Path, documents: list[list[str]], kind: str, vocabulary: int, lowercase: bool) -> Corpus:
    text = "\n".join(line for document in documents for line in document)
    train_tokenizer(iter([text] * 8), kind, vocabulary, lowercase=lowercase,
                    roles={"start", "separator", "mask"}).save(folder / "tokenizer")
    return corpus_of(folder, documents, folder / "tokenizer")


def text_of(corpus: Corpus, document: int, start: int, stop: int) -> str:
    """The text of some tokens."""
    tokens = np.array([start, stop - 1])
    first, last = corpus.values_at("starts", tokens)
    return corpus.document_text(document)[first:last + corpus.values_at("lengths", tokens)[1]]


def connectives_in(corpus: Corpus) -> set[tuple[str, str]]:
    """(connective, remainder of its sentence) as in the text; also checks that the label is that connective."""
    result = find_connectives(corpus, CONNECTIVES)
    pairs = set()
    for index, skip, label in zip(result.sentence, result.num_tokens, result.label, strict=True):
        start, stop = corpus.sentence_starts[index], corpus.sentence_starts[index + 1]
        document = int(np.searchsorted(corpus.document_starts, start, side="right")) - 1
        edges = (start, start + skip), (start + skip, stop)
        head, remainder = (text_of(corpus, document, *edge).strip() for edge in edges)
        assert head.lower().rstrip(",，") == CONNECTIVES[label]
        pairs.add((head, remainder))
    return pairs


@pytest.mark.parametrize(("kind", "vocabulary", "lowercase"), [
    ("wordpiece", 120, True), ("wordpiece", 400, False), ("byte_bpe", 300, False), ("byte_bpe", 700, False),
    ("bpe", 90, True), ("unigram", 90, False)])
def test_connectives_are_found_with_every_tokenizer(tmp_path, kind, vocabulary, lowercase):
    """Except at the start of a document, and not as part of a word ("Solder", "Butter")."""
    assert connectives_in(build(tmp_path, ENGLISH, kind, vocabulary, lowercase)) == EXPECTED


def test_a_sentence_that_is_only_a_connective_is_no_example(tmp_path):
    documents = [["He waits", "So", "But he left", "However"], ["He waits", "So,"]]
    corpus = build(tmp_path, documents, "wordpiece", 200, True)
    assert connectives_in(corpus) == {("But", "he left")}


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_connectives_inside_running_text_are_found(tmp_path, separator):
    """A byte-level token includes the space before it."""
    words = " ".join(ENGLISH[0])
    tokenizer = train_tokenizer(iter([words] * 8), "byte_bpe", 400, lowercase=False, roles={"start", "separator"})
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(separator.join(document) for document in ENGLISH))
    build_corpus([text], tokenizer, tmp_path / "corpus", workers=1, sentences="split")
    assert connectives_in(Corpus.open(tmp_path / "corpus")) == EXPECTED


def test_chinese_connectives_are_found_and_names_are_not(tmp_path):
    pytest.importorskip("jieba")
    assert connectives_in(build(tmp_path, HAN, "wordpiece", 200, True)) == HAN_EXPECTED
    assert len(set(CONNECTIVES)) == len(CONNECTIVES) > len(CHINESE)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return build(tmp_path_factory.mktemp("discourse"), ENGLISH * 3, "wordpiece", 300, True)


def test_every_row_is_a_sentence_and_its_successor_without_the_connective(corpus):
    view = whole(corpus)
    draft = draft_of(view, "segment_pair", 60, rows=400)
    objective().make_targets(draft, np.random.default_rng(0))
    sentences = corpus.sentence_starts.tolist()
    used = set()
    for row, label in enumerate(draft.row_labels[NAME].tolist()):
        source, segments = draft.corpus_offsets[row], draft.segment_ids[row]
        a, b = (source[(source >= 0) & (segments == segment)] for segment in (0, 1))
        assert sentences.index(a[0]) + 1 == sentences.index(a[-1] + 1)
        skip = b[0] - (a[-1] + 1)
        assert skip > 0 and int(b[-1]) + 1 in sentences
        removed = corpus.tokenizer.decode(corpus.values_between("tokens", int(a[-1]) + 1, int(b[0])))
        assert removed.rstrip(" ,") == CONNECTIVES[label]
        used.add(label)
    assert used == {CONNECTIVES.index(word) for word in ("however", "but", "in short", "so", "in addition")}


def test_only_documents_of_the_subset_are_used(corpus):
    documents = whole(corpus).document_ranges
    for ranges in (documents[:1], documents[4:6]):
        view = CorpusSubset(corpus, ranges)
        draft = draft_of(view, "segment_pair", 60, rows=50)
        objective().make_targets(draft, np.random.default_rng(0))
        source = draft.corpus_offsets[draft.corpus_offsets >= 0]
        assert source.min() >= ranges[0, 0] and source.max() < ranges[-1, 1]
        assert (draft.row_labels[NAME] >= 0).all()


def test_a_subset_without_connectives_has_no_labels(corpus):
    documents = whole(corpus).document_ranges
    first = int(documents[0, 0])
    view = CorpusSubset(corpus, np.array([[first, int(corpus.sentence_starts[2])]]))  # two sentences, no connective
    #                                                                                   between them
    draft = draft_of(view, "segment_pair", 60, rows=5)
    before = draft.spans.start.tolist()
    objective().make_targets(draft, np.random.default_rng(0))
    assert (draft.row_labels[NAME] == -1).all() and draft.spans.start.tolist() == before


def test_custom_connectives_are_numbered_in_order(corpus):
    task = objective(["so", "but"])
    assert task.classes == 2
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=60)
    task.make_targets(draft, np.random.default_rng(0))
    assert set(draft.row_labels[NAME]) == {0, 1}
    assert task.missing_data(corpus) is None


def test_fewer_than_two_connectives_in_the_corpus_are_reported(corpus, corpus_folder):
    assert "only one" in objective(["however", "meanwhile"]).missing_data(corpus)
    message = objective().missing_data(Corpus.open(corpus_folder))
    assert message.startswith("none of its") and "objective.discourse_relation.connectives" in message


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 20)
    spans, _ = RowSampler(view, packing, 0).next_rows(12)
    batched = Draft(view, spans.select(np.arange(12)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(12)])
    objective().make_targets(batched, rng)
    after = rng.random((12, 2))
    for row in range(12):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective().make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert (row_rng.random((1, 2))[0] == after[row]).all()
