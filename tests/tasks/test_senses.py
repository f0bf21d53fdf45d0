"""Nearest contexts of an ambiguous word: against plain loops; alignment with tokens; ties; the command; errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from parity.reference import perturb

import stemma
from stemma.cli import main
from stemma.errors import UserError
from stemma.evaluation.senses import OccurrenceVectors, compare_vectors, principal_coordinates, senses
from stemma.evaluation.word_occurrences import Occurrence, aligned_tokens, find_occurrences
from stemma.text.train_tokenizer import train_tokenizer

LINES = ["the bank lends money to the old clerk\tmoney", "money in a bank pays the clerk\tmoney",
         "the river bank is green\triver", "we sit on the bank of the wide river\triver", "",
         "The Bank of money opens at nine\tmoney", "embankment and banks are other words\tnone",
         "green grass on the bank of the river\triver"]
CHINESE = ["我吃一个苹果\t水果", "苹果公司卖手机\t公司", "他买了苹果手机\t公司", "红苹果很甜\t水果"]
SMALL = ["network.width=24", "network.layers=2", "corpus.sequence_length=32"]


def build(kind: str, text: list[str], lowercase: bool = False):
    tokenizer = train_tokenizer(iter(text * 20), kind, 300, lowercase=lowercase,
                                roles={"mask", "start", "separator", "padding"})
    torch.manual_seed(3)
    built = stemma.build("bert@tiny", tokenizer.vocab_size, SMALL)
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    return built


@pytest.fixture(scope="module")
def model():
    return build("wordpiece", [line.split("\t")[0] for line in LINES], lowercase=True)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "bank.tsv").write_text("\n".join(LINES) + "\n")
    return tmp_path / "bank.tsv"


def cosine(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def vector_alone(model, occurrence, layer: int) -> list[float]:
    """The mean of the hidden states of the word's tokens, one sentence at a time: the tokens whose text is the word."""
    corpus = model.recipe.settings.corpus
    encoding = model.tokenizer.with_template(corpus.single, corpus.pair).encode(occurrence.sentence)
    with torch.no_grad():
        stream = model.encoder_stream(torch.tensor([encoding.ids]))
        states = model.network({"encoder": stream}, keep_hidden_states=True).all_hidden_states("encoder")[layer][0]
    rows = [states[i].tolist() for i, (start, end) in enumerate(encoding.offsets)
            if occurrence.start <= start < end <= occurrence.end]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_neighbours_and_shares_are_those_of_plain_loops(model, file):
    result = senses([model], "bank", file, layers=["static", 0, 1, -1], neighbours=2)
    found = [Occurrence(**item) for item in result["occurrences"]]
    assert [(item.line, item.sense) for item in found] == [(1, "money"), (2, "money"), (3, "river"), (4, "river"),
                                                          (6, "money"), (8, "river")]
    assert all(item.sentence[item.start:item.end].lower() == "bank" for item in found)
    assert [row["layer"] for row in result["models"]] == ["static", "0", "1", "2"]
    for row, layer in zip(result["models"][1:], (0, 1, 2), strict=True):
        vectors = [vector_alone(model, item, layer) for item in found]
        right = 0
        for i, neighbours in enumerate(row["neighbours"]):
            order = sorted((j for j in range(6) if j != i), key=lambda j: -cosine(vectors[i], vectors[j]))
            if layer:  # in the embedding, occurrences at the same position tie
                assert [item["occurrence"] for item in neighbours] == order[:2] and row["ties"][i] == 1
            assert [item["similarity"] for item in neighbours] == pytest.approx(
                [cosine(vectors[i], vectors[j]) for j in order[:2]], abs=1e-4)
            right += found[i].sense == found[order[0]].sense
        assert row["same_sense"] == pytest.approx(right / 6) and not row["tied"]
    static = result["models"][0]
    assert static["tied"] and static["ties"] == [5] * 6
    assert static["same_sense"] == pytest.approx(result["chance"]) == pytest.approx(2 / 5)
    assert result["senses"] == {"money": 3, "river": 3}
    assert all(math.hypot(*point) == 0 for point in static["coordinates"])


def test_contexts_with_known_vectors():
    """Two senses in two directions; a duplicate sentence is no other context; unlabelled occurrences do not count."""
    angles = [0.0, 0.1, 1.5, 1.6, 0.05, 0.02]
    vectors = np.array([[math.cos(angle), math.sin(angle)] for angle in angles], dtype=np.float32)
    labels = ["a", "a", "b", "b", None, "b"]
    texts = ["one", "two", "three", "four", "five", "one"]
    found = [Occurrence(i + 1, text, 0, 3, sense) for i, (text, sense) in enumerate(zip(texts, labels, strict=True))]
    result = compare_vectors([OccurrenceVectors("m", "1", vectors)], found, 1)
    (row,) = result["models"]
    assert [neighbours[0]["occurrence"] for neighbours in row["neighbours"]] == [4, 4, 3, 2, 5, 4]
    # of the labelled ones: 0 -> 1 right, 1 -> 5 wrong, 2 -> 3 and 3 -> 2 right, 5 -> 1 wrong (0 is the same sentence)
    assert row["same_sense"] == pytest.approx(3 / 5)
    assert result["chance"] == pytest.approx((1 / 3 + 1 / 4 + 2 / 4 + 2 / 4 + 2 / 3) / 5)
    assert result["senses"] == {"a": 2, "b": 3}


def test_common_words_are_a_baseline(model, file):
    """The sentences of a sense share words here, so counting them finds the sense nearly always."""
    result = senses([model], "bank", file)
    assert result["words"] >= 5 / 6 > result["chance"]
    assert [row["layer"] for row in result["models"]] == ["static", "2"]


def test_all_layers_are_rows(model, file):
    rows = senses([model], "bank", file, layers=["all", "mean"])["models"]
    assert [row["layer"] for row in rows] == ["0", "1", "2", "mean"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "unigram", "character"])
def test_every_tokenizer_aligns_words_of_several_tokens(kind, file):
    text = [line.split("\t")[0] for line in LINES]
    model = build(kind, [*text, "embankment"] if kind != "character" else text)
    result = senses([model], "bank", file, layers=[-1])
    for item in (Occurrence(**item) for item in result["occurrences"]):
        corpus = model.recipe.settings.corpus
        encoding = model.tokenizer.with_template(corpus.single, corpus.pair).encode(item.sentence)
        at = aligned_tokens(item, encoding.offsets, item.sentence)
        assert at, encoding.tokens
        spelled = "".join(encoding.tokens[i] for i in at)
        assert spelled.replace("##", "").strip("▁Ġ").lower() == "bank"
    assert len(result["occurrences"]) == 6


def test_a_chinese_word_is_found_without_spaces_and_aligned_to_tokens(tmp_path):
    (tmp_path / "apple.tsv").write_text("\n".join(CHINESE) + "\n")
    model = build("wordpiece", [line.split("\t")[0] for line in CHINESE])  # a character is a token
    result = senses([model], "苹果", tmp_path / "apple.tsv")
    assert [item["line"] for item in result["occurrences"]] == [1, 2, 3, 4] and result["missing"] == {"bert@tiny": 0}
    expected = vector_alone(model, Occurrence(**result["occurrences"][1]), 2)
    other = vector_alone(model, Occurrence(**result["occurrences"][2]), 2)
    similarity = next(item["similarity"] for item in result["models"][1]["neighbours"][1] if item["occurrence"] == 2)
    assert similarity == pytest.approx(cosine(expected, other), abs=1e-4)


def test_tokens_that_reach_beyond_the_word_are_not_the_word():
    occurrence = Occurrence(1, "他买了苹果手机", 3, 5)
    assert aligned_tokens(occurrence, [(0, 1), (1, 3), (3, 4), (4, 5), (5, 7)], occurrence.sentence) == [2, 3]
    assert aligned_tokens(occurrence, [(0, 1), (1, 3), (3, 7)], occurrence.sentence) is None
    assert aligned_tokens(occurrence, [(0, 1), (1, 3), (3, 4)], occurrence.sentence) is None  # truncated
    assert aligned_tokens(occurrence, [(0, 1)], occurrence.sentence) is None
    spaced = Occurrence(1, "a bank", 2, 6)
    assert aligned_tokens(spaced, [(0, 1), (1, 6)], spaced.sentence) == [1]  # the token has the space before the word
    assert aligned_tokens(spaced, [(0, 1), (2, 6)], "a  bank") is None


def test_occurrences_are_whole_words_in_any_case_unless_asked(tmp_path):
    (tmp_path / "s.txt").write_text("Play it.\nthe players play a play\nreplay\nPLAY, they said\n")
    found = [(item.line, item.start) for item in find_occurrences("play", tmp_path / "s.txt")]
    assert found == [(1, 0), (2, 12), (2, 19), (4, 0)]
    with pytest.raises(UserError, match="occurs in one sentence"):
        find_occurrences("play", tmp_path / "s.txt", match_case=True)


def test_principal_coordinates_keep_distances_of_points_in_a_plane():
    generator = np.random.default_rng(0)
    plane = np.linalg.qr(generator.normal(size=(10, 2)))[0]
    points = generator.normal(size=(12, 2)) * [3.0, 1.0]
    coordinates = principal_coordinates(points @ plane.T + 5.0)
    for i in range(12):
        for j in range(12):
            assert math.dist(coordinates[i], coordinates[j]) == pytest.approx(math.dist(points[i], points[j]), abs=1e-9)
    assert coordinates.var(0)[0] > coordinates.var(0)[1]
    assert principal_coordinates(np.ones((3, 1), dtype=np.float32)).tolist() == [[0.0, 0.0]] * 3


def test_the_command_prints_a_table_json_and_a_picture(model, file, tmp_path, capsys):
    stemma.save(model, tmp_path / "m")
    command = ["senses", str(tmp_path / "m"), "bank", str(file)]
    assert main([*command, "--json", "--plot", str(tmp_path / "bank.svg")]) == 0
    out = capsys.readouterr().out
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result["models"] == stemma.senses(tmp_path / "m", "bank", file)["models"]
    assert result["models"][0]["model"] == str(tmp_path / "m") and result["plot"] == str(tmp_path / "bank.svg")
    picture = (tmp_path / "bank.svg").read_text()
    assert picture.startswith("<svg") and "one vector for all occurrences" in picture and "money" in picture
    assert main([*command, "--plot", str(tmp_path / "bank.svg")]) == 2
    capsys.readouterr()
    assert main([*command, "--show", "2", "--layer", "static", "--layer", "-1"]) == 0
    table = capsys.readouterr().out
    assert "line 1    the [bank] lends money" in table and "(money)" in table
    assert "one vector: all 5 other contexts tie" in table and "2 of 6 occurrences" in table
    lines = {line.split("  ")[0]: line.split()[-1] for line in table.splitlines()}
    assert lines["chance level"] == lines[f"{tmp_path / 'm'}, static"] == "40.0%"
    assert lines[f"{tmp_path / 'm'}, layer 2"] == f"{result['models'][1]['same_sense']:.1%}"


def test_without_senses_there_is_no_share(model, tmp_path, capsys):
    stemma.save(model, tmp_path / "m")
    (tmp_path / "s.txt").write_text("\n".join(line.split("\t")[0] for line in LINES))
    assert main(["senses", str(tmp_path / "m"), "bank", str(tmp_path / "s.txt"), "--plot",
                 str(tmp_path / "p.svg")]) == 0
    assert "no senses in the file" in capsys.readouterr().out
    result = stemma.senses(tmp_path / "m", "bank", tmp_path / "s.txt")
    assert result["chance"] is None and result["words"] is None and result["models"][1]["same_sense"] is None


def test_vector_files_are_the_static_side(model, file, tmp_path, capsys):
    (tmp_path / "v.txt").write_text("bank 1 0.5 0\nriver 0 1 0\nBank 0 0 1\n")
    stemma.save(model, tmp_path / "m")
    assert main(["senses", str(tmp_path / "v.txt"), str(tmp_path / "m"), "bank", str(file), "--layer", "-1",
                 "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["layer"]) for row in result["models"]] == \
        [(str(tmp_path / "v.txt"), "static"), (str(tmp_path / "m"), "2")]
    static = result["models"][0]
    assert static["ties"] == [4, 4, 4, 4, 5, 4] and not static["tied"]  # line 6 has Bank, which has its own vector
    (tmp_path / "lower.txt").write_text("bank 1 0.5 0\n")
    lower = senses([tmp_path / "lower.txt"], "bank", file)
    assert lower["models"][0]["tied"] and lower["models"][0]["same_sense"] == pytest.approx(lower["chance"])
    assert lower["models"][0]["same_sense"] == pytest.approx(2 / 5)
    (tmp_path / "other.txt").write_text("river 1 0.5 0\n")
    message = error_message(capsys, tmp_path / "other.txt", "bank", file)
    assert 'has no vector for "bank"' in message


def error_message(capsys, *words: object) -> str:
    assert main(["senses", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def test_errors_say_what_where_and_what_to_do(model, file, tmp_path, capsys, caplog):
    folder = tmp_path / "m"
    stemma.save(model, folder)
    assert '"bnk" does not occur in the 7 sentences of' in (message := error_message(capsys, folder, "bnk", file))
    assert 'Did you mean "bank"?' in message
    assert "--layer is 9, and" in error_message(capsys, folder, "bank", file, "--layer", 9)
    assert "occurs in one sentence" in error_message(capsys, folder, "embankment", file)
    (tmp_path / "empty.txt").write_text("\n")
    assert "has no sentences; write one on each line" in error_message(capsys, folder, "bank", tmp_path / "empty.txt")
    assert "cannot read" in error_message(capsys, folder, "bank", tmp_path / "nothing.txt")
    assert "the word is empty" in error_message(capsys, folder, " ", file)
    (tmp_path / "long.txt").write_text("\n".join(f"{'the ' * 40} bank {word}" for word in ("a", "b")))
    message = error_message(capsys, folder, "bank", tmp_path / "long.txt")
    assert "fewer than two sentences are left" in message and "misses 2 of 2" in message
    (tmp_path / "symbols.txt").write_text("the ☃ money\nthe ☃ river\n")
    assert 'does not know "☃"' in error_message(capsys, folder, "☃", tmp_path / "symbols.txt")
    assert "--neighbours" in error_message(capsys, folder, "bank", file, "--neighbours", 0)


def test_occurrences_beyond_the_length_are_left_out_with_a_note(model, tmp_path, caplog):
    (tmp_path / "s.txt").write_text(f"the bank of the river\nmoney in a bank\n{'the ' * 40} bank\n")
    result = senses([model], "bank", tmp_path / "s.txt")
    assert len(result["occurrences"]) == 2 and result["missing"] == {"bert@tiny": 1}
    assert any("1 of 3 occurrences left out" in message for message in caplog.messages)
    assert len(senses([model], "bank", tmp_path / "s.txt", limit=2)["occurrences"]) == 2
