"""Analogies and word pairs: their files, scores against gensim, and the commands."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from commands import stemma_unreported as run

import stemma
from stemma.errors import UserError
from stemma.vectors.files import write_text
from stemma.vectors.questions import (
    analogy_accuracy,
    read_pairs,
    read_questions,
    similarity_scores,
    solve,
)
from stemma.vectors.word_vectors import WordVectors

QUESTIONS = """: capitals
athens greece oslo norway
Athens Greece Paris France
athens greece rome italy
: plural
cat cats dog dogs
"""
WORDS = ["athens", "greece", "oslo", "norway", "paris", "france", "cat", "cats", "dog", "dogs", "far"]


@pytest.fixture
def vectors():
    """Countries are capitals plus one vector; plurals are not words plus another, except by accident."""
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(len(WORDS), 12)).astype(np.float32)
    for capital in (0, 2, 4):
        matrix[capital + 1] = matrix[capital] + 3 * matrix[10]
    return WordVectors(WORDS, matrix)


def test_accuracy_by_section_with_unknown_words_counted(vectors, tmp_path):
    (tmp_path / "q.txt").write_text(QUESTIONS)
    sections = read_questions(tmp_path / "q.txt")
    result = analogy_accuracy(vectors, sections)
    assert result["sections"]["capitals"] == {"accuracy": 1.0, "correct": 2, "questions": 2, "unknown": 1}
    assert result["questions"] == 3 and result["unknown"] == 1
    assert solve(vectors, "athens", "greece", "oslo")[0].word == "norway"
    limited = analogy_accuracy(vectors, sections, limit=4)
    assert limited["questions"] == 1 and limited["sections"]["plural"]["accuracy"] is None


def test_scores_are_those_of_gensim(tmp_path):
    gensim = pytest.importorskip("gensim.models")
    data = Path(find_spec("gensim").origin).parent / "test" / "test_data"
    sections = read_questions(data / "questions-words.txt")
    words = sorted({word.lower() for section in sections[4:6] for question in section.questions for word in question})
    words += sorted({word for pair in read_pairs(data / "wordsim353.tsv")[:200] for word in pair[:2]} - set(words))
    rng = np.random.default_rng(0)
    vectors = WordVectors(words, (rng.normal(size=(40, 6))[rng.integers(0, 40, len(words))]
                                  + 0.5 * rng.normal(size=(len(words), 6))).astype(np.float32))
    theirs = gensim.KeyedVectors(6)
    theirs.add_vectors(words, vectors.matrix)
    score, by_section = theirs.evaluate_word_analogies(str(data / "questions-words.txt"))
    ours = analogy_accuracy(vectors, sections)
    assert ours["correct"] == sum(len(section["correct"]) for section in by_section if section["section"] !=
                                  "Total accuracy") > 0
    assert ours["accuracy"] == pytest.approx(score)
    for name in ("wordsim353.tsv", "simlex999.txt"):
        pairs = read_pairs(data / name)
        pearson, spearman, unknown = theirs.evaluate_word_pairs(str(data / name), case_insensitive=False)
        result = similarity_scores(vectors, pairs)
        assert result["spearman"] == pytest.approx(spearman[0], abs=1e-6)
        assert result["pearson"] == pytest.approx(pearson[0], abs=1e-5)
        assert 100 * result["unknown"] / len(pairs) == pytest.approx(unknown)


def test_files_of_word_pairs(tmp_path):
    for content in ("# c\nWord 1,Word 2,Human (mean)\ncat,dog,7\nold,new,1.5\n", "cat dog 7\nold new 1.5\n",
                    "word1\tword2\tPOS\tSimLex999\tconc\ncat\tdog\tN\t7\t2\nold\tnew\tA\t1.5\t2\n"):
        (tmp_path / "pairs").write_text(content)
        assert read_pairs(tmp_path / "pairs") == [("cat", "dog", 7.0), ("old", "new", 1.5)]


@pytest.mark.parametrize(("read", "content", "match"), [
    (read_pairs, "a\tb\t1\nc\td\n", "broken lines"), (read_pairs, "a b 1\n", "fewer than two"),
    (read_questions, "a b c\n", "is no file of analogies"), (read_questions, ": x\n", "has no analogies")])
def test_broken_files_are_refused(tmp_path, read, content, match):
    (tmp_path / "file").write_text(content)
    with pytest.raises(UserError, match=match):
        read(tmp_path / "file")
    with pytest.raises(UserError, match="there is no file"):
        read(tmp_path / "none")


def test_the_commands_print_what_the_functions_return(vectors, tmp_path):
    write_text(vectors, tmp_path / "v.txt")
    (tmp_path / "q.txt").write_text(QUESTIONS)
    (tmp_path / "p.txt").write_text("cat\tdog\t7\nold\tcat\t1.5\noslo\tnorway\t9\nathens\tfar\t2\n")

    def printed(*command):
        completed = run(*command, "--json", folder=tmp_path)
        assert completed.code == 0, completed.err
        return completed.json

    found = printed("neighbours", "v.txt", "cat", "dog", "--top", 2)["neighbours"]
    assert found == json.loads(json.dumps(stemma.neighbours(tmp_path / "v.txt", ["cat", "dog"], top=2)))
    result = printed("analogy", "v.txt", "q.txt")
    assert result["sections"]["capitals"]["unknown"] == 1
    assert result["accuracy"] == stemma.analogy(tmp_path / "v.txt", tmp_path / "q.txt")["accuracy"]
    assert printed("analogy", "v.txt", "athens", "greece", "paris")["answers"][0]["word"] == "france"
    result = printed("similarity", "v.txt", "p.txt")
    assert result["pairs"] == 3 and result["unknown"] == 1
    assert result["spearman"] == stemma.similarity(tmp_path / "v.txt", tmp_path / "p.txt")["spearman"]
    assert "capitals" in run("analogy", "v.txt", "q.txt", folder=tmp_path).out
    for command, message in ((("neighbours", "none.txt", "a"), "there is no vector file and no model"),
                             (("analogy", "v.txt", "a", "b"), "takes a file, or three words"),
                             (("neighbours", "v.txt", "zzz"), 'no vector for "zzz"')):
        failed = run(*command, folder=tmp_path)
        assert failed.code == 2 and message in failed.err


def test_the_input_embedding_of_any_model(corpus_folder, tmp_path):
    stemma.save(stemma.build("gpt2@tiny", vocab_size=300), tmp_path / "none")  # without a tokenizer
    with pytest.raises(UserError, match="tokenizer"):
        stemma.neighbours(tmp_path / "none", "the")
    stemma.pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=1)
    words = stemma.neighbours(tmp_path / "run", "the", top=3)["the"]
    assert len(words) == 3 and "[MASK]" not in [row["word"] for row in words]
