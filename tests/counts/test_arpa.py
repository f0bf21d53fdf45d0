"""ARPA files: written and read back, against a slow reader and KenLM; pruned models; broken files."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from literal.arpa import ArpaFile
from ngram_models import ngram_tables, random_documents

from stemma.counts.arpa import escape, write_arpa
from stemma.counts.arpa_reader import ArpaVocabulary, read_arpa
from stemma.errors import UserError
from stemma.network.ngram_tables import NgramTable

END, UNKNOWN = 0, 1
# spellings with white space, of special words, of escapes and of sections
TOKENS = ["<|end|>", "[unk]", "the", "a b", " ", "", "<s>", "</s>", "<unk>", "<UNK>", "\\", "\\u{20}", "\\end\\",
          "\u3000", "\xa0x", "0", "-99", "\n"]
SIZE = len(TOKENS)


def vocabulary_of(tokens, unknown_id=UNKNOWN, special_ids=()) -> ArpaVocabulary:
    return ArpaVocabulary.of_tokens({token: index for index, token in enumerate(tokens)}, len(tokens), END, unknown_id,
                                    special_ids)


def written(tables, tokens=TOKENS, unknown_id=UNKNOWN) -> str:
    file = io.StringIO()
    write_arpa(tables, tokens, END, unknown_id, file)
    return file.getvalue()


def read(text: str, tokens=TOKENS, unknown_id=UNKNOWN, special_ids=()):
    return read_arpa(Path("lm.arpa"), text.split("\n"), vocabulary_of(tokens, unknown_id, special_ids))


def scores(tables, documents) -> list[list[float]]:
    """log10 of each token and of the end of each document."""
    table = NgramTable(tables.vocab_size, tables.order)
    table.assign(tables)
    result = []
    for document in documents:
        tokens = [END, *document, END]
        contexts = [[tokens[i - back] if i >= back else -1 for back in range(1, tables.order)]
                    for i in range(1, len(tokens))]
        values = table.score(torch.tensor(contexts, dtype=torch.long).reshape(len(tokens) - 1, tables.order - 1),
                             torch.tensor(tokens[1:]))
        result.append((values.double() / math.log(10)).tolist())
    return result


def test_every_token_has_a_spelling_of_its_own():
    spelled = [escape(token) for token in TOKENS]
    assert len(set(spelled)) == SIZE and not {"<s>", "</s>", "<unk>"} & set(spelled)
    assert all(word.split() == [word] for word in spelled)
    assert escape("a b") == "a\\u{20}b" and escape("Ġthe") == "Ġthe" and escape("<s>") == "\\u{3c}s>"


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize("unknown_id", [UNKNOWN, None])
def test_a_file_that_is_written_and_read_gives_the_same_tables(order, unknown_id):
    documents = random_documents(order, 40, SIZE, 15)
    tables, _ = ngram_tables(documents, order, SIZE, END)
    text = written(tables, unknown_id=unknown_id)
    again = read(text, unknown_id=unknown_id)
    assert (again.num_missing, again.num_unknown, again.num_added) == (0, 0, 0)
    for name in ("keys", "log_probs", "backoffs"):
        for one, other in zip(getattr(again.tables, name), getattr(tables, name), strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other), name
    assert written(again.tables, unknown_id=unknown_id) == text


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_equal_a_slow_reader_of_the_file(order):
    tables, _ = ngram_tables(random_documents(order, 40, SIZE, 15), order, SIZE, END)
    slow = ArpaFile(written(tables))
    held_out = random_documents(99, 20, SIZE, 12, skewed=False)
    words = [["<unk>" if token == UNKNOWN else escape(TOKENS[token]) for token in document] for document in held_out]
    assert_close(scores(tables, held_out), [slow.sentence(document) for document in words], tolerance=1e-5)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_kenlm_gives_the_same_scores(tmp_path, order):
    kenlm = pytest.importorskip("kenlm")
    tokens = ["<|end|>", "[unk]", *(f"w{i}" for i in range(20)), "a b"]
    tables, _ = ngram_tables(random_documents(order, 40, len(tokens), 15), order, len(tokens), END)
    (tmp_path / "lm.arpa").write_text(written(tables, tokens))
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    assert model.order == order
    held_out = random_documents(99, 20, len(tokens), 12, skewed=False)
    expected = [[score for score, _, _ in model.full_scores(" ".join(escape(tokens[token]) for token in document))]
                for document in held_out]
    assert_close(scores(tables, held_out), expected, tolerance=1e-4)


SRILM = """Notes may come before the data.

\\data\\
ngram 1=6
ngram 2=5
ngram 3=3

\\1-grams:
-0.8\t</s>
-99\t<s>\t-0.5
-1.0\t<unk>
-0.6\tthe\t-0.4
-0.9\tcat\t-0.3
-1.1 sat -0.2

\\2-grams:
-0.2\t<s> the\t-0.1
-0.3\tthe cat\t-0.15
-0.4\tcat sat
-0.5\tsat </s>
-0.6\t<unk> cat

\\3-grams:
-0.05\t<s> the cat
-0.07\tsat the cat
-0.09\tthe sat </s>

\\end\\
"""
WORDS = ["[SEP]", "[UNK]", "the", "cat", "sat"]


def test_a_pruned_model_in_the_form_of_srilm_keeps_its_probabilities():
    """Two trigrams begin with bigrams that the file does not have ("sat the", "the sat"), and one bigram has no weight.
    """
    model, slow = read(SRILM, WORDS), ArpaFile(SRILM)
    assert (model.num_missing, model.num_unknown, model.num_added) == (0, 0, 2)
    documents = [[2, 3, 4], [4, 2, 3], [2, 4], [3, 3, 3], [1, 3, 4, 2, 4], []]
    words = [["<unk>" if token == 1 else WORDS[token] for token in document] for document in documents]
    assert_close(scores(model.tables, documents), [slow.sentence(document) for document in words], tolerance=1e-6)


def test_tokens_that_the_file_lacks_share_the_probability_of_unk():
    model = read(SRILM, [*WORDS, "dog", "ran"])
    assert model.num_missing == 2
    shared = 10 ** (model.tables.log_probs[0][[1, 5, 6]] / math.log(10))
    assert_close(shared.tolist(), [0.1 / 3] * 3, tolerance=1e-6)
    without_unknown = read(SRILM, ["[SEP]", "dog", "the", "cat", "sat"], unknown_id=None)
    assert (without_unknown.num_missing, without_unknown.num_unknown) == (1, 1)
    assert float(without_unknown.tables.log_probs[0][1]) == pytest.approx(-math.log(10), abs=1e-6)
    no_unk = SRILM.replace("-1.0\t<unk>\n", "").replace("-0.6\t<unk> cat\n", "").replace("1=6", "1=5").replace(
        "2=5", "2=4")
    without = read(no_unk, [*WORDS, "dog"])
    assert float(without.tables.log_probs[0][5]) == pytest.approx(-99 * math.log(10))
    assert model.has_unknown and without_unknown.has_unknown and not without.has_unknown


def test_special_tokens_have_no_part_of_the_probability_of_unk():
    words = [*WORDS, "dog", "[PAD]", "[MASK]"]
    model = read(SRILM, words, special_ids=[0, 1, 6, 7])
    assert model.num_missing == 1
    shared = 10 ** (model.tables.log_probs[0][[1, 5, 6, 7]] / math.log(10))
    assert_close(shared.tolist(), [0.05, 0.05, 0, 0], tolerance=1e-6)
    whole = read(SRILM, [*WORDS, "[PAD]"], special_ids=[0, 1, 5])
    assert whole.num_missing == 0
    assert float(whole.tables.log_probs[0][1]) == pytest.approx(-math.log(10), abs=1e-6)


UNIGRAM_TWICE = {"a word": "-0.9\tthe\t-0.2\n", "<s>": "-99\t<s>\n", "<unk>": "-1.0\t<unk>\n", "<UNK>": "-1.0\t<UNK>\n"}


@pytest.mark.parametrize("twice", UNIGRAM_TWICE)
@pytest.mark.parametrize("unknown_id", [UNKNOWN, None])
def test_a_unigram_that_occurs_twice_is_refused(twice, unknown_id):
    text = SRILM.replace("1=6", "1=7").replace("-0.9\tcat", f"{UNIGRAM_TWICE[twice]}-0.9\tcat")
    with pytest.raises(UserError, match=r"lm\.arpa has 1 1-gram twice; keep one line of each\.") as error:
        read(text, WORDS, unknown_id)
    assert ("<unk> and <UNK> are one word." in error.value.message) == ("unk" in twice.lower())


@pytest.mark.parametrize(("old", "new", "message"), [
    ("\\data\\", "data", r"lm\.arpa is no ARPA file: it has no line"),
    ("ngram 2=5", "ngram 2=7", r"line 23: the header says 7 2-grams, and the file has 5; it is incomplete"),
    ("ngram 2=5", "ngram 3=5", r'line 5: "ngram 3=5" stands where "ngram 2=NUMBER" should'),
    ("ngram 1=6\nngram 2=5\nngram 3=3\n", "", r'no line "ngram 1=NUMBER" follows'),
    ("ngram 1=6", "ngram 1=0", r"line 4: the model has no 1-grams, so it has no words"),
    ("ngram 3=3", "\n".join(f"ngram {n}=3" for n in range(3, 8)), r"has 7-grams, and n-grams of up to 6 tokens"),
    ("-0.6\tthe", "0.6\tthe", r'line 12: "0\.6" is no log10 of a probability'),
    ("-0.6\tthe", "nan\tthe", r'line 12: "nan" is no log10 of a probability'),
    ("-0.6\tthe", "x\tthe", r'line 12: "x" is no number'),
    ("the\t-0.4", "the\ty", r'line 12: "y" is no number'),
    ("the\t-0.4", "the\tinf", r'line 12: "inf" is no log10 of a back-off weight'),
    ("\tthe cat\t", "\tthe\t", r'"-0\.15" \(line 18\)'),
    ("\tcat sat\n", "\tcat sat on it\n", r"line 19: 5 fields instead of a logarithm, 2 words and"),
    ("\tcat sat\n", "\tcat dog\n", r'has 1 word that this tokenizer does not have: "dog" \(line 19\)'),
    ("cat sat\n", "the cat\n", r"has 1 2-gram twice"),
    ("<s> the cat", "the <s> cat", r'"the <s> cat": <s> can only come first and </s> last'),
    ("\\3-grams:", "\\4-grams:", r'"\\4-grams:" stands where "\\3-grams:" should'),
    ("\n\\end\\\n", "", r'the file ends here, before "\\end\\"; copy it again'),
    (SRILM[SRILM.index("\\3-grams:"):], "", r'the file ends here, before "\\3-grams:"'),
])
def test_a_broken_file_is_refused_with_its_line(old, new, message):
    with pytest.raises(UserError, match=message):
        read(SRILM.replace(old, new, 1), WORDS)
