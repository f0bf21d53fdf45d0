"""Tagged words: the files of CoNLL and of Chinese NER, and what schemes allow."""

from __future__ import annotations

import json

import pytest

from stemma.errors import UserError
from stemma.tasks.data.checks import check_labels
from stemma.tasks.data.conll import detect_scheme, to_iob2
from stemma.tasks.data.examples import TaggedExample, label_counts
from stemma.tasks.datasets import read_examples


@pytest.fixture
def write(tmp_path):
    def write_file(content: str, name: str = "a.txt"):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name
    return write_file


def tagged(*tags: str) -> list[TaggedExample]:
    return [TaggedExample("x", tuple("w" * len(sentence.split())), tuple(sentence.split())) for sentence in tags]


def test_conll_2003(write):
    path = write("-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP I-PER\n\n"
                 "-DOCSTART- -X- O O\n\n# NN B-NP O\n1 CD I-NP O")
    examples = read_examples("conll2003", path)
    assert [(example.words, example.tags) for example in examples] == [
        (("EU", "rejects"), ("I-ORG", "O")), (("Peter",), ("I-PER",)), (("#", "1"), ("O", "O"))]
    assert [example.where.rsplit(" ", 1)[1] for example in examples] == ["3", "7", "11"]
    assert detect_scheme(examples) == "IOB1"


def test_tabs_comments_and_document_markers(write):
    path = write("-DOCSTART- (6794356)\n\n# text = a leaf\nvalve\tNOUN\tO\tB-X\nleak\tNOUN\tO\tI-X\n\n"
                 "# id\n#\tSYM\tO\tO\n")
    assert [example.words for example in read_examples("tag", path)] == [("valve", "leak"), ("#",)]
    assert [example.words for example in read_examples("tag", write("# note\na O\n# O\n\n# word two\nb B-X\n"))] == \
           [("a", "#"), ("b",)]


def test_chinese_ner(write):
    for name in ("msra-ner", "peoples-daily-ner"):
        for gap in (" ", "\t"):
            path = write(f"北{gap}B-LOC\n京{gap}I-LOC\n\u3000{gap}O\n\n我{gap}O\n", "example.train")
            assert [(e.words, e.tags) for e in read_examples(name, path)] == \
                   [(("北", "京", "\u3000"), ("B-LOC", "I-LOC", "O")), (("我",), ("O",))]
    for gap in (" ", "\x02"):
        path = write(f"text_a\tlabel\n{gap.join('北京好')}\t{gap.join(['B-LOC', 'I-LOC', 'O'])}\n", "train.tsv")
        (example,) = read_examples("msra-ner", path)
        assert (example.words, example.tags) == (tuple("北京好"), ("B-LOC", "I-LOC", "O")) and "line 2" in example.where
    (example,) = read_examples("msra-ner", write("text_a\n北 京\n", "test_nolabel.tsv"))
    assert example.words == ("北", "京") and example.tags is None


def test_json_lines(write):
    path = write(json.dumps({"words": ["New York", "is"], "tags": ["B-LOC", "O"]}), "a.jsonl")
    assert read_examples("tag", path)[0].words == ("New York", "is")
    path = write(json.dumps({"tokens": ["a"], "pos": ["NN"]}), "a.jsonl")
    assert read_examples("tag", path)[0].tags is None
    assert read_examples("tag", path, columns={"tags": "pos"})[0].tags == ("NN",)
    path = write("\n".join(json.dumps({"words": ["a"] * n, "tags": ["O"] * 2}) for n in (1, 2, 0, 3)), "a.jsonl")
    with pytest.raises(UserError, match="3 problems") as error:
        read_examples("tag", path)
    assert "1 words and 2 tags" in str(error.value) and "no words" in str(error.value) and "line 4" in str(error.value)


def test_lines_with_the_wrong_number_of_columns(write):
    with pytest.raises(UserError, match="2 problems") as error:
        read_examples("tag", write("a B-X\nb\nc O\n\nd O O\ne O\n"))
    assert "line 2" in str(error.value) and "1 column where other lines have 2" in str(error.value)
    assert read_examples("tag", write("only\nwords\n"))[0].tags is None


@pytest.mark.parametrize(("scheme", "tags"), [
    ("plain", ["NN VB NN"]), ("plain", ["O O"]), ("IOB2", ["B-X I-X B-X O B-Y"]), ("IOB1", ["I-X I-X B-X O I-Y"]),
    ("IOB1", ["B-X I-Y"]), ("BIOES", ["B-X I-X E-X S-X O S-Y"]), ("BIOES", ["O S-Y"])])
def test_schemes_are_detected(scheme, tags):
    assert detect_scheme(tagged(*tags)) == scheme


@pytest.mark.parametrize("tags", ["B-X O S-X", "O I-X E-X S-X", "E-X S-X", "B-X E-Y", "S-X B-X", "B-X I-X S-X",
                                  "B-X X O", "B-X I O"])
def test_invalid_tag_sequences_are_rejected(write, tags):
    with pytest.raises(UserError, match=r"line 1, word \d"):
        read_examples("tag", write("".join(f"w {tag}\n" for tag in tags.split())))


def test_mixed_entity_starts_are_accepted_with_a_warning(write, caplog):
    path = write("a O\nb B-X\nc I-X\nd O\ne I-X\n")
    (example,) = read_examples("tag", path)
    assert len(caplog.messages) == 1 and "word 2 (b)" in caplog.messages[0]
    assert to_iob2(example.tags, detect_scheme([example])) == ("O", "B-X", "I-X", "O", "B-X")
    read_examples("tag", write("a I-X\nb B-X\nc I-Y\n"))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("scheme", "tags", "same"), [
    ("IOB1", "I-X I-X B-X I-Y O I-Y", "B-X I-X B-X B-Y O B-Y"), ("IOB2", "B-X I-X B-X O", "B-X I-X B-X O"),
    ("BIOES", "S-X I-X E-X I-X", "B-X B-X I-X B-X"),  # no sequence of the scheme, but a model may say it
    ("BIOES", "S-X S-X B-X I-X E-X S-Y", "B-X B-X B-X I-X I-X B-Y"), ("plain", "NN VB", "NN VB")])
def test_every_scheme_converts_to_iob2(scheme, tags, same):
    assert to_iob2(tags.split(), scheme) == tuple(same.split())


def test_tags_are_labels():
    dev = tagged("B-X O", "B-Z O")
    assert label_counts(dev) == {"O": 2, "B-X": 1, "B-Z": 1}
    with pytest.raises(UserError, match=r'x, word 1 \(w\): label "B-Z"'):
        check_labels(["O", "B-X"], dev, "dev.txt")
