"""Vector files: all formats, read and written, against gensim and fastText; and files that are wrong."""

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.vectors.fasttext_file import read_fasttext_file, write_fasttext
from stemma.vectors.files import read_vectors, write_binary, write_text
from stemma.vectors.subwords import ngram_buckets
from stemma.vectors.word_vectors import WordVectors

WORDS = ["the", "naïve", "苹果", "x", "of", "</s>"]


def some_vectors(words=WORDS, width=5, seed=0):
    return WordVectors(list(words), np.random.default_rng(seed).normal(size=(len(words), width)).astype(np.float32))


WRITERS = {"word2vec": (write_text, {}), "binary": (write_binary, {"binary": True}),
           "glove": (lambda vectors, path: write_text(vectors, path, header=False), {"no_header": True})}


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_read_as_written(tmp_path, name):
    vectors = some_vectors()
    WRITERS[name][0](vectors, tmp_path / "v")
    read = read_vectors(tmp_path / "v")
    assert read.words == WORDS
    assert np.array_equal(read.matrix, vectors.matrix)  # 9 digits are exact for float32
    few = read_vectors(tmp_path / "v", only=["X", "nothing", "苹果"])
    assert few.words == ["苹果", "x"]
    assert np.array_equal(few.matrix, vectors.matrix[[2, 3]])


@pytest.mark.parametrize("name", WRITERS)
def test_gensim_reads_our_files_and_we_read_those_of_gensim(tmp_path, name):
    gensim = pytest.importorskip("gensim.models")
    write, options = WRITERS[name]
    vectors = some_vectors()
    write(vectors, tmp_path / "ours")
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), **options)
    assert theirs.index_to_key == WORDS
    assert np.array_equal(theirs.vectors, vectors.matrix)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=options.get("binary", False),
                                write_header=not options.get("no_header"))
    read = read_vectors(tmp_path / "theirs")
    assert read.words == WORDS
    assert np.allclose(read.matrix, vectors.matrix, atol=1e-6)


# ---- fastText ----

@pytest.fixture(scope="module")
def fasttext_model(tmp_path_factory):
    fasttext = pytest.importorskip("fasttext")
    folder = tmp_path_factory.mktemp("fasttext")
    rng = np.random.default_rng(0)
    words = np.array(["the", "running", "runner", "naïveté", "苹果", "été", "b", "unbelievable",
                      *(f"w{n}" for n in range(100))])
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choice(words, 10)) for _ in range(2000)), encoding="utf-8")
    # the library initializes a tenth of its matrix in each thread: with fewer than ten threads, or a size that is no
    # multiple of ten, the rest is arbitrary
    model = fasttext.train_unsupervised(str(folder / "text.txt"), dim=10, bucket=500, epoch=1, thread=10, verbose=0)
    model.save_model(str(folder / "model.bin"))
    return model, folder / "model.bin"


@pytest.mark.parametrize("word", ["running", "苹果派", "naïveté", "é", "a", "ab", "\U0001f600 smile", "x" * 40])
def test_subwords_are_those_of_fasttext(fasttext_model, word):
    model, path = fasttext_model
    content = read_fasttext_file(path)
    buckets = model.get_subwords(word)[1]
    buckets = buckets[buckets >= len(content.words)] - len(content.words)
    assert ngram_buckets([word], content.args["min_n"], content.args["max_n"], 500)[1].tolist() == buckets.tolist()


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 6), (0, 4)])
def test_subwords_of_many_words_at_once(sizes):
    """Those of each word alone, in order; gensim's hashes, which leave out no n-gram of one character."""
    hashes = pytest.importorskip("gensim.models.fasttext").ft_ngram_hashes
    words = ["the", "été", "苹果", "a", "</s>", "", "running"]
    word, bucket = ngram_buckets(words, *sizes, 1000)
    assert (np.diff(word) >= 0).all()
    assert 4 not in word
    for number, spelled in enumerate(words):
        alone = ngram_buckets([spelled], *sizes, 1000)[1]
        assert bucket[word == number].tolist() == alone.tolist()
        if sizes[0] > 1 and spelled != "</s>":
            assert sorted(alone.tolist()) == sorted(hashes(spelled, *sizes, 1000))


def test_fasttext_file_is_read_as_by_fasttext(fasttext_model):
    model, path = fasttext_model
    vectors = read_vectors(path)
    assert list(vectors.words) == model.get_words()
    for word in [*vectors.words, "unknown", "苹果树"]:
        assert np.allclose(vectors.vector(word), model.get_word_vector(word), atol=1e-6)
    matrix, known = vectors.for_words(["the", "unknown", ""])
    assert known.tolist() == [True, True, True]
    assert np.allclose(matrix[1], model.get_word_vector("unknown"), atol=1e-6)
    assert vectors.for_words(["unknown"], composed=False)[1].tolist() == [False]


def test_fasttext_file_is_written_byte_for_byte(fasttext_model, tmp_path):
    _, path = fasttext_model
    write_fasttext(read_fasttext_file(path), tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == path.read_bytes()


def test_damaged_fasttext_file(fasttext_model, tmp_path):
    content = fasttext_model[1].read_bytes()
    for length in (10, 60, 200, len(content) - 3):
        (tmp_path / "cut.bin").write_bytes(content[:length])
        with pytest.raises(UserError, match="damaged fastText file, or cut short"):
            read_vectors(tmp_path / "cut.bin")


# ---- files that are wrong ----

def refused(tmp_path, content, match):
    path = tmp_path / "bad.vec"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=match) as error:
        read_vectors(path)
    assert "bad.vec" in error.value.message
    return error.value


def test_broken_lines_are_listed_with_their_numbers(tmp_path):
    error = refused(tmp_path, "the 1 2 3\nof 1 2\nand 1 x 3\nto 4 5 6\nin 1 2 3 4\n", "broken lines; each must have")
    assert error.problems[:2] == [("line 2", '"of" has 2 numbers and not 3'), ("line 3", '"and": "x" is no number')]
    error = refused(tmp_path, "2 3\nthe 1 2 3\nof 1 2\n", "broken lines")
    assert error.problems == [("line 3", '"of" has 2 numbers and not 3')]


@pytest.mark.parametrize(("content", "match"), [
    ("", "is empty"), ("only words here\n", "is no vector file"), ("3 2\na 1 2\nb 1 2\n", "has 3 words, and it has 2"),
    ("a 1 nan\nb 1 2\n", "not finite"), ("2 0\n", "width 0"),
    (b"3 4\nab " + bytes(16) + b"\ncd " + bytes(3), "damaged at word 2"),
])
def test_other_broken_files(tmp_path, content, match):
    refused(tmp_path, content, match)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="there is no vector file"):
        read_vectors(tmp_path / "none.txt")


def test_duplicate_words_keep_the_first_vector_and_are_named(tmp_path, caplog):
    (tmp_path / "v").write_text("a 1 2\nb 3 4\na 5 6\n")
    vectors = read_vectors(tmp_path / "v")
    assert vectors.words == ["a", "b"]
    assert vectors.vector("a").tolist() == [1, 2]
    assert '1 word more than once ("a"); the first vector of each counts.' in caplog.text


def test_words_with_spaces_as_in_large_glove_files(tmp_path):
    (tmp_path / "v").write_text("the 1 2\nat name@domain 3 4\n. . . 5 6\n")
    assert read_vectors(tmp_path / "v").words == ["the", "at name@domain", ". . ."]


# ---- lookup ----

def test_neighbors_are_sorted_by_cosine_without_the_word_itself():
    vectors = WordVectors(["a", "b", "c", "zero"], np.array([[1, 0], [2, 0.2], [0, 1], [0, 0]], np.float32))
    found = vectors.neighbors("A", top=10)
    assert [word for word, _ in found] == ["b", "c", "zero"]
    assert found[0].similarity == pytest.approx(2 / np.hypot(2, 0.2))
    with pytest.raises(UserError, match='no vector for "d"'):
        vectors.neighbors("d")
