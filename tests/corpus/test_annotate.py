import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_corpora import corpus_of

from stemma.atomic_files import lock_folder
from stemma.corpus import annotate as module
from stemma.corpus import text_chunks
from stemma.corpus.annotate import annotate
from stemma.corpus.corpus import Corpus
from stemma.corpus.info import corpus_info, describe_corpus
from stemma.corpus.lexicon_matcher import select_disjoint
from stemma.corpus.phrase_mining import mine_phrases
from stemma.errors import UserError
from stemma.text.collocations import CountTable, npmi
from stemma.text.train_tokenizer import train_tokenizer

ENGLISH = [["The river Thames runs through New York, they say.", "He lives in New York now; New York is large."],
           ["A part of the text stands apart.", "Old York is not New  York.", "The Thames, the river Thames!"],
           ["In NEW YORK nothing is new."]]
KINDS = ["wordpiece", "byte_bpe", "unigram", "bpe", "character"]


def build(folder: Path, documents=ENGLISH, kind="wordpiece", lowercase=False, **options) -> Corpus:
    text = "\n".join("\n".join(document) for document in documents)
    train_tokenizer(iter([text]), kind, 400, lowercase=lowercase).save(folder / "tokenizer")
    return corpus_of(folder, documents, folder / "tokenizer", **options)


def write_list(folder: Path, text: str, name: str = "list.txt") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def marked_units(corpus: Corpus, name: str) -> list[str]:
    """The text of every marked unit; also checks that the marks are consistent."""
    marks = corpus.values_between(name, 0, corpus.num_tokens)
    assert set(marks.tolist()) <= {0, 1, 2}
    assert not ((marks[1:] == 2) & (marks[:-1] == 0)).any() and marks[0] != 2
    results = []
    for first in np.flatnonzero(marks == 1):
        last = first
        while last + 1 < corpus.num_tokens and marks[last + 1] == 2:
            last += 1
        document = int(np.searchsorted(corpus.document_starts, first, side="right")) - 1
        assert last < corpus.document_starts[document + 1]
        start = corpus.values_at("starts", [first])[0]
        end = corpus.values_at("starts", [last])[0] + corpus.values_at("lengths", [last])[0]
        results.append(" ".join(corpus.document_text(document)[start:end].split()))
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_lexicon_entries_are_found_with_every_tokenizer(tmp_path, kind):
    corpus = build(tmp_path, kind=kind)
    lexicon = write_list(tmp_path, "New York\tplace\nriver Thames\nYork\tplace\na part\nabsent\tthing\n")
    result = annotate(corpus.path, entities=lexicon)["annotations"]["entities"]
    annotated = Corpus.open(corpus.path)
    assert Counter(marked_units(annotated, "entities")) == {"New York": 4, "river Thames": 2, "York": 1}
    assert (result["source"], result["entries"], result["found"], result["units"]) == ("lexicon", 5, 3, 7)
    assert result["types"] == {"place": 5, "thing": 0}
    assert result["top"][0] == {"text": "New York", "count": 4, "type": "place"}
    assert result["tokens"] == np.count_nonzero(annotated.values_between("entities", 0, annotated.num_tokens))


def test_a_lowercasing_tokenizer_finds_entries_in_any_case(tmp_path):
    corpus = build(tmp_path, lowercase=True)
    annotate(corpus.path, entities=write_list(tmp_path, "New York\nA PART\n"))
    assert Counter(marked_units(Corpus.open(corpus.path), "entities")) == {"New York": 4, "NEW YORK": 1, "A part": 1}


def test_the_longest_then_the_leftmost_entry_is_marked(tmp_path):
    corpus = build(tmp_path, [["a b c d e", "b c b c b c b", "x a b c"]])
    annotate(corpus.path, phrases=write_list(tmp_path, "a b\nb c d\nb c b\nc\n"))
    assert marked_units(Corpus.open(corpus.path), "phrases") == ["b c d", "b c b", "c", "b c b", "a b", "c"]


CHINESE = [["我们在图书馆研究古代手稿。", "北京大学在北京。", "北京的大学"]]


def test_chinese_entries_may_start_and_end_at_any_character(tmp_path):
    corpus = build(tmp_path, CHINESE)
    annotate(corpus.path, entities=write_list(tmp_path, "北京大学\torg\n北京\tplace\n书馆研\n京的\n"))
    assert marked_units(Corpus.open(corpus.path), "entities") == ["书馆研", "北京大学", "北京", "北京"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram"])
def test_matches_equal_a_regular_expression_search_for_any_chunk_size(tmp_path, monkeypatch, seed, kind):
    """Random words and entries of one to four words; the reference searches the longest entries first."""
    rng = np.random.default_rng(seed)
    words = ["ab", "ba", "abba", "b", "x1", "ça"]
    documents = [[" ".join(rng.choice(words, rng.integers(1, 12))) + "." for _ in range(rng.integers(1, 5))]
                 for _ in range(12)]
    entries = sorted({" ".join(rng.choice(words, size)) for size in (1, 2, 2, 3, 3, 4)})
    corpus = build(tmp_path, documents, kind=kind, shard_tokens=40)
    assert len(corpus.manifest["shards"]) > 2
    monkeypatch.setattr(text_chunks, "CHUNK_TOKENS", 25)
    annotate(corpus.path, entities=write_list(tmp_path, "\n".join(entries) + "\n"))
    expected = []
    for index in range(len(documents)):
        text = re.sub(r"\s+", " ", corpus.document_text(index))
        is_marked = np.zeros(len(text), bool)
        results = []
        for size in sorted({len(entry) for entry in entries}, reverse=True):
            for match in re.finditer(rf"(?=(?<!\w)({'|'.join(e for e in entries if len(e) == size)})(?!\w))", text):
                if not is_marked[match.start():match.start() + size].any():
                    is_marked[match.start():match.start() + size] = True
                    results.append((match.start(), match[1]))
        expected += [entry for _, entry in sorted(results)]
    if kind == "wordpiece":  # others may cut an entry where a chunk ends inside a sentence
        assert marked_units(Corpus.open(corpus.path), "entities") == expected
    monkeypatch.undo()
    annotate(corpus.path, entities=tmp_path / "list.txt", overwrite=True)
    assert marked_units(Corpus.open(corpus.path), "entities") == expected


def test_select_disjoint_keeps_spans_greedily_from_left_to_right():
    rng = np.random.default_rng(0)
    for _ in range(200):
        first = np.sort(rng.integers(0, 30, 12))
        stop = first + rng.integers(1, 8, 12)
        expected, last_end = [], -1
        for start, end in zip(first, stop, strict=True):
            expected.append(start >= last_end)
            last_end = end if expected[-1] else last_end
        assert select_disjoint(first, stop).tolist() == expected


# --- mining -----------------------------------------------------------------------------------------------------------


def prose(seed: int, documents: int = 20) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    words = [f"w{chr(97 + n)}" for n in range(12)]
    build = []
    for _ in range(documents):
        lines = []
        for _ in range(8):
            line = list(rng.choice(words, rng.integers(2, 9)))
            if rng.random() < 0.5:
                line.insert(int(rng.integers(0, len(line))), "New York")
            if rng.random() < 0.4:
                line.insert(int(rng.integers(0, len(line))), "head of state")
            lines.append(" ".join(line) + rng.choice([".", " , so.", "!", ""]))
        build.append(lines)
    return build


def literal_phrases(corpus: Corpus, min_count: int, threshold: float, longest: int) -> dict[str, tuple[int, float]]:
    """Phrases by counting in Python. Words are `\\w+`; punctuation and sentence ends break phrases."""
    runs = []
    for index in range(len(corpus.document_starts) - 1):
        for line in corpus.document_text(index).split("\n"):
            runs += [re.findall(r"\w+", part) for part in re.split(r"[^\w\s]", line)]
    counts = [Counter(tuple(run[i:i + size]) for run in runs for i in range(len(run) - size + 1))
              for size in range(1, longest + 1)]
    total = sum(counts[0].values())
    word_counts = {gram: count for gram, count in counts[0].items() if count >= min_count}
    parts, result = dict(word_counts), {}
    for size in range(2, longest + 1):
        fresh = {}
        for gram, count in counts[size - 1].items():
            cuts = [(parts.get(gram[:-1]), word_counts.get(gram[-1:])),
                    (word_counts.get(gram[:1]), parts.get(gram[1:]))]
            scores = [math.log(count * total / (x * y)) / -math.log(count / total) for x, y in cuts if x and y]
            if count >= min_count and scores and max(scores) >= threshold:
                fresh[gram] = count
                result[" ".join(gram)] = (count, max(scores))
        parts = fresh
    return result


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0.05, 0.4])
@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_mined_phrases_match_a_plain_count(tmp_path, seed, threshold, kind):
    corpus = build(tmp_path, prose(seed), kind=kind, shard_tokens=300)
    result = {phrase.text: (phrase.count, phrase.score) for phrase in mine_phrases(corpus, 4, threshold, 4)}
    expected = literal_phrases(corpus, 4, threshold, 4)
    assert result.keys() == expected.keys() and {"New York", "head of state"} <= result.keys()
    assert {text: n for text, (n, _) in result.items()} == {text: n for text, (n, _) in expected.items()}
    for text, (_, score) in expected.items():
        assert result[text][1] == pytest.approx(score)


def test_mined_phrases_are_marked_and_reported(tmp_path):
    corpus = build(tmp_path, prose(5))
    result = annotate(corpus.path, phrases="mine", min_count=5, threshold=0.6, top=2)["annotations"]["phrases"]
    units = Counter(marked_units(Corpus.open(corpus.path), "phrases"))
    assert set(units) >= {"New York", "head of state"}
    assert result["units"] == sum(units.values()) and len(result["top"]) == 2
    assert {phrase["text"]: phrase["count"] for phrase in result["top"]} == dict(units.most_common(2))
    assert all(0.6 <= phrase["score"] <= 1 for phrase in result["top"])
    assert (result["score"], result["min_count"], result["threshold"]) == ("npmi", 5, 0.6)


def test_npmi_is_1_for_perfect_and_0_for_chance_collocation():
    ten, total = np.array([10]), 1000
    assert npmi(ten, ten, ten, total)[0] == pytest.approx(1)  # the words occur only together
    assert npmi(ten, np.array([100]), np.array([100]), total)[0] == pytest.approx(0)  # as often as by chance
    assert npmi(ten, np.array([500]), np.array([500]), total)[0] < 0
    assert np.isfinite(npmi(ten, ten, ten, 10)).all()


def test_a_full_count_table_drops_the_rarest_keys():
    rng = np.random.default_rng(0)
    keys = np.concatenate([np.repeat(np.arange(20), 50), np.arange(100, 400)]).astype(np.uint64)
    rng.shuffle(keys)
    table = CountTable(max_keys=100)
    for part in np.array_split(keys, 9):
        table.add(part)
    assert len(table) <= 100 and (table.counts_for(np.arange(20, dtype=np.uint64)) >= 40).all()
    unlimited = CountTable(columns=1)
    for part in np.array_split(keys, 9):
        unlimited.add(part, part[:, None])
    assert (unlimited.counts_for(keys) == [Counter(keys.tolist())[key] for key in keys.tolist()]).all()
    assert (unlimited.columns[:, 0] == unlimited.keys).all()
    assert unlimited.counts_for(np.array([7777], np.uint64)).tolist() == [0]


# --- spans and roles --------------------------------------------------------------------------------------------------


def test_spans_mark_every_token_that_they_overlap(tmp_path):
    corpus = build(tmp_path)
    text = corpus.document_text(0)
    spans = [(text.index("Thames"), 6, "river"), (text.index("New York"), 8, "place"),
             (text.index("lives") + 1, 3, None)]
    rows = [{"document": 0, "start": at, "end": at + size, "type": kind} for at, size, kind in spans]
    result = annotate(corpus.path, entities=write_list(tmp_path, "\n".join(map(json.dumps, rows)), "spans.jsonl"))
    assert marked_units(Corpus.open(corpus.path), "entities")[:2] == ["Thames", "New York"]
    record = result["annotations"]["entities"]
    assert (record["source"], record["units"], record["types"]) == ("spans", 3, {"river": 1, "place": 1})


def test_roles_are_numbered_as_they_appear_and_cover_their_spans(tmp_path):
    corpus = build(tmp_path)
    first, second = (len(line) for line in ENGLISH[0])
    rows = f"0\t0\t{first}\tuser\n0\t{first + 1}\t{first + 1 + second}\tagent\n2\t0\t9\tuser\n"
    result = annotate(corpus.path, speakers=write_list(tmp_path, rows, "roles.tsv"))["annotations"]["roles"]
    annotated = Corpus.open(corpus.path)
    roles = annotated.values_between("roles", 0, annotated.num_tokens)
    start, stop = annotated.document_starts[:2]
    middle = start + np.searchsorted(annotated.values_between("starts", start, stop), first)
    assert set(roles[start:middle].tolist()) == {1} and set(roles[middle:stop].tolist()) == {2}
    assert not roles[stop:annotated.document_starts[2]].any() and roles[annotated.document_starts[2]] == 1
    assert result["roles"] == ["user", "agent"]


def test_spans_that_do_not_fit_the_text_are_refused_by_line(tmp_path):
    corpus = build(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in corpus.path.rglob("*")}
    with pytest.raises(UserError) as error:
        annotate(corpus.path, entities=write_list(tmp_path, "0\t0\t3\n9\t0\t3\n1\t2\t9999\n", "spans.tsv"))
    assert [line for line, _ in error.value.problems] == ["line 3", "line 2"]
    with pytest.raises(UserError, match="has no speaker"):
        annotate(corpus.path, speakers=write_list(tmp_path, "0\t0\t3\n", "roles.tsv"))
    with pytest.raises(UserError, match="roles are given by span"):
        annotate(corpus.path, speakers=write_list(tmp_path, "user\n"))
    assert before == {path: path.stat().st_mtime_ns for path in corpus.path.rglob("*")}


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_annotations_are_recorded_and_keep_the_fingerprint(tmp_path):
    corpus = build(tmp_path, shard_tokens=20)
    annotations_before = corpus.annotations()
    annotate(corpus.path, entities=write_list(tmp_path, "New York\tplace\n"))
    annotate(corpus.path, phrases=write_list(tmp_path, "river Thames\n"))
    annotated = Corpus.open(corpus.path)  # every checksum is verified
    assert annotated.fingerprint == corpus.fingerprint
    assert annotated.annotations() == [*annotations_before, "entities", "phrases"]
    record = annotated.manifest["annotations"]["entities"]
    assert record["file"] == "list.txt" and len(record["sha256"]) == 64 and "top" not in record
    description = describe_corpus(corpus_info(corpus.path))
    assert "phrases          2 units" in description and "by the lexicon in list.txt" in description


def test_annotations_are_replaced_only_with_overwrite(tmp_path):
    corpus = build(tmp_path)
    annotate(corpus.path, entities=write_list(tmp_path, "New York\n"))
    with pytest.raises(UserError, match="has entities already; add --overwrite"):
        annotate(corpus.path, entities=write_list(tmp_path, "Thames\n"))
    annotate(corpus.path, entities=tmp_path / "list.txt", overwrite=True)
    assert set(marked_units(Corpus.open(corpus.path), "entities")) == {"Thames"}


def test_an_interrupted_annotation_leaves_the_corpus_unchanged(tmp_path, monkeypatch):
    corpus = build(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_update_manifest", fail)
    with pytest.raises(KeyboardInterrupt):
        annotate(corpus.path, phrases="mine", min_count=1, threshold=0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert Corpus.open(corpus.path).annotations() == corpus.annotations()


def test_a_second_concurrent_annotation_is_refused(tmp_path):
    corpus = build(tmp_path)
    with lock_folder(corpus.path), pytest.raises(UserError, match="another command"):
        annotate(corpus.path, phrases="mine")
    annotate(corpus.path, phrases="mine")
    with pytest.raises(UserError, match="there is no corpus"):
        annotate(tmp_path / "nowhere", phrases="mine")


@pytest.mark.parametrize("options", [{}, {"phrases": "mine", "min_count": 0}, {"phrases": "mine", "max_words": 1},
                                     {"phrases": "mine", "threshold": 1.5}])
def test_invalid_options_are_refused(tmp_path, options):
    with pytest.raises(UserError):
        annotate(build(tmp_path).path, **options)
