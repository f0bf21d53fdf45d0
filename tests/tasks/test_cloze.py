"""Cloze evaluation: published files are read, and predictions follow the likelihoods of the model."""

from __future__ import annotations

import json
import math

import pytest
import torch
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.evaluation.accuracy import label_macro_f1, majority_baseline, wilson_interval
from stemma.evaluation.cloze import ClozeItem, cloze, read_cloze_items
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.lm_scorer import LMScorer
from stemma.text.train_tokenizer import train_tokenizer

TEXT = "the old clerk reads a letter. a young reader forgets the river. one missing leaf by the window. " * 20
CBT = "".join(f"{number} Sentence {number} .\n" for number in range(1, 21)) + \
    "21 The XXXXX reads a letter .\tclerk\t\triver|clerk|window|leaf\n\n" + \
    "1 A young reader .\n2 By the\tXXXXX\n"


@pytest.fixture
def model() -> stemma.Model:
    tokenizer = train_tokenizer(iter([TEXT]), "byte_bpe", 320, lowercase=False, roles={"end"})
    torch.manual_seed(0)
    built = stemma.build("gpt2@tiny", tokenizer.vocab_size, ["network.layers=1", "network.width=16", "network.heads=2",
                                                            "network.feedforward=16", "corpus.sequence_length=400"])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    return built


def test_last_words_of_both_forms(tmp_path):
    (tmp_path / "a.txt").write_text('He said "no"\nOne two  three .\n\n')
    assert read_cloze_items(tmp_path / "a.txt") == ("lambada", [ClozeItem("He said", (' "no"',), 0, 1),
                                                                ClozeItem("One two  three", (" .",), 0, 2)])
    rows = [{"text": "first line\n\nsecond word "}, {"text": "a b"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_cloze_items(tmp_path / "a.jsonl")[1] == [ClozeItem("first line\n\nsecond", (" word",), 0, 1),
                                                         ClozeItem("a", (" b",), 0, 2)]


def test_the_childrens_book_test_as_published_and_as_json(tmp_path):
    (tmp_path / "cbt.txt").write_text(CBT.rsplit("1 A young", 1)[0])
    kind, (question,) = read_cloze_items(tmp_path / "cbt.txt")
    assert kind == "cbt" and question.gold_index == 1 and question.line == 21
    assert question.context.startswith("Sentence 1 . Sentence 2 .") and question.context.endswith("Sentence 20 . The")
    assert question.continuations == tuple(f" {word} reads a letter ." for word in ("river", "clerk", "window", "leaf"))
    row = {"context": ["One .", "Two ."], "question": "XXXXX reads .", "answer": "clerk", "candidates": ["a", "clerk"]}
    (tmp_path / "cbt.jsonl").write_text(json.dumps(row))
    assert read_cloze_items(tmp_path / "cbt.jsonl") == \
           ("cbt", [ClozeItem("One . Two .", (" a reads .", " clerk reads ."), 1, 1)])


def test_a_last_word_is_correct_if_greedy_decoding_gives_it(model, tmp_path):
    """Half of the passages end in the model's own prediction."""
    reader, passages = LMScorer(model), []
    for context in ("the old", "a young reader", "one missing leaf by"):
        ids = torch.tensor([[model.tokenizer.special_token_ids["end"], *model.tokenizer.encode(context).ids]])
        order = model.logits(ids)[0, -1].argsort(descending=True).tolist()
        words = [(rank, model.tokenizer.decode([token])) for rank, token in enumerate(order)]
        expected = next(((rank, word) for rank, word in words if word.startswith(" ") and word[1:].isalpha()))
        passages += [f"{context}{expected[1]}", f"{context} window"]
        if expected[0]:  # something else is likelier: make this the likeliest
            with torch.no_grad():
                model.network.embedding.tokens.weight[order[expected[0]]] = model.hidden(ids)[0, -1] * 3
    (tmp_path / "a.txt").write_text("\n".join(passages))
    seen: list[int] = []
    result = cloze(model, tmp_path / "a.txt", on_progress=seen.append)
    scores = [score_continuations(reader, [question.context], list(question.continuations))[0]
            for question in read_cloze_items(tmp_path / "a.txt")[1]]
    assert result["correct"] == sum(score.is_greedy for score in scores) >= 1 and result["correct"] < 6
    assert result["accuracy"] == result["correct"] / 6 and result["interval"] == wilson_interval(result["correct"], 6)
    mean = sum(score.log_probability for score in scores) / 6
    assert result["perplexity"] == pytest.approx(math.exp(-mean), rel=1e-5)
    assert sum(seen) == result["questions"] == 6 and result["cut"] == 0
    assert cloze(model, tmp_path / "a.txt", limit=2)["questions"] == 2


def test_a_candidate_is_scored_with_the_rest_of_its_sentence(model, tmp_path):
    (tmp_path / "cbt.txt").write_text(CBT.rsplit("1 A young", 1)[0])
    (question,) = read_cloze_items(tmp_path / "cbt.txt")[1]
    ids = [[model.tokenizer.special_token_ids["end"], *model.tokenizer.encode(question.context + text).ids]
           for text in question.continuations]
    first = len(model.tokenizer.encode(question.context).ids)

    def log_likelihood(row: list[int]) -> float:
        chances = model.logits(torch.tensor([row[:-1]])).log_softmax(-1)[0].gather(1, torch.tensor(row[1:])[:, None])
        return float(chances[first:].sum())

    expected = max(range(4), key=lambda rank: log_likelihood(ids[rank]))
    for answer, word in enumerate(("river", "clerk", "window", "leaf")):
        (tmp_path / "one.txt").write_text((tmp_path / "cbt.txt").read_text().replace("\tclerk\t", f"\t{word}\t"))
        result = cloze(model, tmp_path / "one.txt")
        assert result["accuracy"] == (answer == expected) and result["chance"] == 0.25


def test_long_contexts_and_unknown_words_are_reported(model, tmp_path, caplog):
    (tmp_path / "a.txt").write_text("the old clerk " * 100 + "reads\nthe river\n")
    assert cloze(model, tmp_path / "a.txt", length=20)["cut"] == 1
    assert "1 of 2 contexts are longer than the 20 tokens" in caplog.messages[0]
    tokenizer = train_tokenizer(iter([TEXT]), "word", 60, lowercase=False, roles={"end", "unknown"})
    lacking = stemma.build("gpt2@tiny", tokenizer.vocab_size, ["network.width=16", "network.heads=2"])
    with torch.no_grad():
        for parameter in lacking.network.parameters():
            parameter.zero_()  # all tokens are equally likely, and ties go to the first (padding, then unknown)
        lacking.network.embedding.tokens.weight[tokenizer.special_token_ids["unknown"]] = 1.0
        lacking.network.encoder.final_norm.bias.fill_(1.0)
    lacking.tokenizer = tokenizer
    (tmp_path / "b.txt").write_text("the old zebra\nthe old giraffe\n")
    caplog.clear()
    result = cloze(lacking, tmp_path / "b.txt")
    assert result["accuracy"] == 0 and result["unknown"] == 2 and "they count as wrong" in caplog.messages[0]


@pytest.mark.parametrize(("name", "content", "said", "line"), [
    ("a.txt", "word\nfine here\n", "cannot be read as lambada", "line 1"),
    ("a.txt", CBT, "cannot be read as cbt", "line 24"),
    ("a.txt", "1 A .\n2 XXXXX .\tclerk\t\triver|leaf\n", "cannot be read", "line 2"),
    ("a.txt", "1 A .\n2 XXXXX and XXXXX .\tleaf\t\triver|leaf\n", "cannot be read", "line 2"),
    ("a.jsonl", '{"text": "a b"}\n{"txt": "a b"}\n', "cannot be read", "line 2"),
    ("a.jsonl", '{"question": "XXXXX", "candidates": ["a"]}\n', "cannot be read", "line 1"),
])
def test_unusable_lines_are_reported(tmp_path, name, content, said, line):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said) as told:
        read_cloze_items(tmp_path / name)
    assert told.value.problems[0][0] == line


def test_invalid_files_are_reported(tmp_path):
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(UserError, match="a.txt is empty"):
        read_cloze_items(tmp_path / "a.txt")
    with pytest.raises(UserError, match='Did you mean "lambada"'):
        read_cloze_items(tmp_path / "a.txt", "lambda")
    (tmp_path / "a.txt").write_text("1 A sentence .\n")
    with pytest.raises(UserError, match="no question in it"):
        read_cloze_items(tmp_path / "a.txt", "cbt")


def test_proportions_and_their_intervals():
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # the example of Newcombe (1998)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert majority_baseline(["a", "b", "a"]) == pytest.approx(2 / 3)
    assert label_macro_f1(["a", "a", "b", "b"], ["a", "b", "b", "b"]) == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert label_macro_f1(["a", "b"], ["a", "a"]) == pytest.approx((2 / 3 + 0) / 2)
