"""Rendered prompts, and predictions that follow from the likelihoods."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.evaluation.accuracy import majority_baseline, wilson_interval
from stemma.evaluation.few_shot import run_few_shot
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.lm_scorer import LMScorer
from stemma.tasks.metrics.squad import exact_match, normalize_answer, token_f1
from stemma.tasks.prompt_template import field_names, fill_fields, load_template, render_examples
from stemma.text.tables import read_table
from stemma.text.train_tokenizer import train_tokenizer

TEXT = "the old clerk reads a letter. Review: a young reader forgets the river. good bad bad good Answer: " * 20
CLASSIFY = 'kind = "classify"\ntext = "Review: {sentence}\\nIt was"\nlabel = "label"\n' \
           'labels = { "0" = " bad", "1" = " good" }\nseparator = "\\n"\n'
SENTENCES = ["the old clerk", "a letter", "the river reads", "a young reader", "forgets the old river", "a clerk"]


@pytest.fixture(scope="module")
def model() -> stemma.Model:
    tokenizer = train_tokenizer(iter([TEXT]), "byte_bpe", 320, lowercase=False, roles={"end"})
    torch.manual_seed(0)
    built = stemma.build("gpt2@tiny", tokenizer.vocab_size, ["network.layers=1", "network.width=16", "network.heads=2",
                                                            "network.feedforward=16", "corpus.sequence_length=80"])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    return built


def table(folder, rows, name="data.jsonl"):
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return read_table(folder / name)


def template(folder, content: str):
    (folder / "template.toml").write_text(content)
    return load_template(folder / "template.toml")


@pytest.fixture
def rows(tmp_path):
    data = table(tmp_path, [{"sentence": text, "label": index % 2} for index, text in enumerate(SENTENCES)])
    return render_examples(template(tmp_path, CLASSIFY), data)


def log_probability(model, context: str, continuation: str) -> float:
    ids = [model.tokenizer.special_token_ids["end"], *model.tokenizer.encode(context + continuation).ids]
    first = len(model.tokenizer.encode(context).ids)
    chances = model.logits(torch.tensor([ids[:-1]])).log_softmax(-1)[0].gather(1, torch.tensor(ids[1:])[:, None])
    return float(chances[first:].sum())


def test_columns_in_braces_are_filled_in():
    assert field_names("{a} {{b}} {#1 String}") == ["a", "#1 String"]
    assert fill_fields("{a} {{b}} {#1 String}", {"a": "{c}", "#1 String": 2}) == "{c} {b} 2"


def test_zero_shot_predicts_the_likelier_label(model, rows, tmp_path):
    shape = template(tmp_path, CLASSIFY)
    seen: list[int] = []
    result, predictions = run_few_shot(model, shape, rows, on_progress=seen.append)
    expected = []
    for text in SENTENCES:
        values = [log_probability(model, f"Review: {text}\nIt was", word) for word in (" bad", " good")]
        expected.append("01"[int(np.argmax(values))])
    assert [one["prediction"] for one in predictions] == expected
    labels = [str(index % 2) for index in range(6)]
    right = sum(a == b for a, b in zip(expected, labels, strict=True))
    assert result["accuracy"] == right / 6 and result["interval"] == wilson_interval(right,
                                                                                   6) and result["majority"] == 0.5
    assert {label: counts["predicted"] for label, counts in result["labels"].items()} == \
           {label: expected.count(label) for label in "01"}
    assert [counts["count"] for counts in result["labels"].values()] == [3, 3]
    assert result["example"] == "Review: the old clerk\nIt was" and result["shots"] == 0 and sum(seen) == 6
    assert predictions[0]["scores"] == pytest.approx(
        [log_probability(model, "Review: the old clerk\nIt was", word) for word in (" bad", " good")], abs=1e-4)


def test_examples_come_before_the_question(model, rows, tmp_path):
    shape = template(tmp_path, 'instruction = "Good or bad?"\n' + CLASSIFY)
    pool = rows[:2]
    result, _ = run_few_shot(model, shape, rows[2:], pool, shots=2, seed=3)
    blocks = ["Review: the old clerk\nIt was bad", "Review: a letter\nIt was good"]
    assert result["example"] in [f"Good or bad?\n{a}\n{b}\nReview: the river reads\nIt was"
                                for a, b in (blocks, blocks[::-1])]


def test_examples_are_sampled_by_seed_from_the_other_rows(model, rows, tmp_path):
    shape = template(tmp_path, CLASSIFY)
    prompts = {}
    for seed in (0, 0, 1, 2, 3):
        result, _ = run_few_shot(model, shape, rows, shots=2, seed=seed, limit=2)
        assert result["rows"] == 2
        assert prompts.setdefault(seed, result["example"]) == result["example"]
        assert result["example"].count("the old clerk\n") == 1  # the question itself is never an example
    assert len(set(prompts.values())) > 1
    complete, _ = run_few_shot(model, shape, rows, shots=2)
    assert complete["example"] == prompts[0]
    with pytest.raises(UserError, match="6 examples before each row need 7 rows to draw from, and there are 6"):
        run_few_shot(model, shape, rows, shots=6)
    with pytest.raises(UserError, match="need 3 rows to draw from, and there are 2"):
        run_few_shot(model, shape, rows, rows[:2], shots=3)


@pytest.mark.parametrize("normalization", ["none", "length", "byte", "unconditional"])
def test_normalizations_equal_values_by_hand(model, tmp_path, normalization):
    shape = template(tmp_path, f'kind = "choice"\ntext = "the old"\nchoices = ["{{endings}}"]\nlabel = "right"\n'
                               f'normalization = "{normalization}"\n')
    endings = [" clerk reads a letter", " river", " reader é"]
    (row,) = render_examples(shape, table(tmp_path, [{"endings": endings, "right": 2}]))
    result, (prediction,) = run_few_shot(model, shape, [row])
    values = [log_probability(model, "the old", text) for text in endings]
    tokens = [len(model.tokenizer.encode(text).ids) for text in endings]
    expected = {"none": values, "length": [a / b for a, b in zip(values, tokens, strict=True)],
                "byte": [a / b for a, b in zip(values, [21, 6, 10], strict=True)],
                "unconditional": [value - log_probability(model, "Answer:", text)
                                  for value, text in zip(values, endings, strict=True)]}[normalization]
    assert prediction["scores"] == pytest.approx(expected, abs=1e-4)
    assert prediction["choice"] == int(np.argmax(expected)) and prediction["label"] == " reader é"
    assert result["chance"] == pytest.approx(1 / 3) and result["normalization"] == normalization


@pytest.mark.parametrize(("more", "label", "correct"), [("", 1, 1), ("first = 1", "1", 0),
                                                      ('label_as = "letter"', "b", 1),
                                                      ('label_as = "text"', "x", 0)])
def test_labels_of_multiple_choice_may_be_indices_letters_or_texts(tmp_path, more, label, correct):
    shape = template(tmp_path, f'kind = "choice"\ntext = "q"\nchoices = [" {{a}}", " {{b}}"]\nlabel = "l"\n{more}\n')
    (row,) = render_examples(shape, table(tmp_path, [{"a": "x", "b": "y", "l": label}]))
    assert row.gold_index == correct and row.answers == (" x", " y")


def test_long_prompts_drop_their_first_examples_and_too_long_rows_are_skipped(model, rows, tmp_path, caplog):
    shape = template(tmp_path, CLASSIFY)
    length = len(model.tokenizer.encode("Review: the old clerk\nIt was bad\nReview: a letter\nIt was good").ids)
    pool, question = [rows[2], rows[0]], rows[1]
    result, _ = run_few_shot(model, shape, [question], pool, shots=2, length=length)
    second = result["example"].split("\n")[0].removeprefix("Review: ")
    assert result["cut"] == 1 and result["mean_shots"] == 1 and second in ("the old clerk", "the river reads")
    assert "1 of 1 prompts were too long" in caplog.messages[0]
    complete, _ = run_few_shot(model, shape, [question], pool, shots=2)
    assert complete["example"].endswith(result["example"]) and complete["cut"] == 0
    long = render_examples(shape, table(tmp_path, [{"sentence": "the old clerk " * 50, "label": 0},
                                               {"sentence": "a", "label": 1}], "long.jsonl"))
    caplog.clear()
    result, predictions = run_few_shot(model, shape, long)
    assert result["rows"] == 1 and result["skipped"] == 1 and [one["line"] for one in predictions] == [2]
    assert "(line 1)" in caplog.messages[0]
    with pytest.raises(UserError, match="longer than the 80 tokens that gpt2@tiny"):
        run_few_shot(model, shape, long[:1])


def test_a_prompt_that_just_fits_is_not_truncated(model, rows, tmp_path):
    shape = template(tmp_path, CLASSIFY)
    tokens = len(model.tokenizer.encode("Review: the old clerk\nIt was good").ids)
    assert run_few_shot(model, shape, rows[:1], length=tokens)[0]["skipped"] == 0
    with pytest.raises(UserError, match="longer than"):
        run_few_shot(model, shape, rows[:1], length=tokens - 1)
    (score,) = score_continuations(LMScorer(model, length=tokens), ["Review: the old clerk\nIt was"], [" good"])
    assert score.num_truncated == 0


def test_questions_are_answered_by_generation(model, tmp_path):
    shape = template(tmp_path, 'kind = "qa"\ntext = "Review: {q}"\nanswer = " {a}"\ntokens = 5\nstop = ["\\n", "."]\n')
    questions = [{"q": text, "a": ["zebra", "the giraffe"]} for text in SENTENCES]
    data = render_examples(shape, table(tmp_path, questions))
    assert data[0].answers == (" zebra", " the giraffe") and data[0].with_answer == "Review: the old clerk zebra"
    _, predictions = run_few_shot(model, shape, data)
    start = model.tokenizer.special_token_ids["end"]
    for text, one in zip(SENTENCES, predictions, strict=True):
        ids = [start, *model.tokenizer.encode(f"Review: {text}").ids]
        generated = stemma.generate(model, [ids], tokens=5, greedy=True, stop=("\n", "."))[0].text.strip()
        assert one["prediction"] == generated
    questions[0]["a"] = predictions[0]["prediction"] + "!"
    again, _ = run_few_shot(model, shape, render_examples(shape, table(tmp_path, questions)))
    expected = exact_match(predictions[0]["prediction"], [questions[0]["a"]])
    assert expected and again["exact_match"] == pytest.approx(1 / 6) and again["f1"] + 1e-9 >= 1 / 6
    assert again["interval"] == wilson_interval(1, 6)


def test_answers_are_compared_as_in_squad():
    assert normalize_answer(" The  Cat, an animal!") == "cat animal"
    assert exact_match("the cat", ["dog", "Cat."]) and not exact_match("cats", ["cat"])
    assert token_f1("the black cat", ["cat sat", "x"]) == pytest.approx(0.5)
    assert token_f1("", [""]) == 1.0 and token_f1("a", ["cat"]) == 0.0
    assert majority_baseline(["0", "0", "1"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("content", "expected"), [
    ('kind = "clasify"\n', 'is of kind "clasify"; choose classify, choice, qa. Did you mean "classify"?'),
    ("text = 1\n", "has no kind; choose classify"),
    ("kind = [\n", "cannot be read"),
])
def test_invalid_templates_are_rejected(tmp_path, content, expected):
    with pytest.raises(UserError, match=expected.replace("?", r"\?").replace(".", r"\.")):
        template(tmp_path, content)


def test_all_problems_of_a_template_are_reported(tmp_path):
    with pytest.raises(UserError) as caught:
        template(tmp_path, 'kind = "classify"\ntext = ""\nlabels = { "0" = 1 }\nlable = "x"\n')
    assert {where.split(" ")[0] for where, _ in caught.value.problems} == {"text", "labels.0", "lable", "label"}
    assert any('Did you mean "label' in what for _, what in caught.value.problems)
    with pytest.raises(UserError) as caught:
        template(tmp_path, CLASSIFY.replace('" good"', '" bad"') + 'answer_context = "A:"\n')
    assert [where for where, _ in caught.value.problems] == ["answer_context", "labels"]
    with pytest.raises(UserError, match="there is no template"):
        load_template(tmp_path / "other.toml")


def test_a_table_that_does_not_fit_is_reported(tmp_path):
    shape = template(tmp_path, CLASSIFY)
    with pytest.raises(UserError, match="does not fit") as caught:
        render_examples(shape, table(tmp_path, [{"sentenc": "a", "lab": 1}]))
    assert [(where, "Did you mean" in what) for where, what in caught.value.problems] == [("sentence", True),
                                                                                        ("label", True)]
    with pytest.raises(UserError, match="does not fit 2 rows") as caught:
        render_examples(shape, table(tmp_path, [{"sentence": "a", "label": 2}, {"sentence": "a", "label": 1},
                                            {"sentence": "a", "label": "x"}]))
    assert [where for where, _ in caught.value.problems] == ["line 1", "line 3"]
    assert caught.value.problems[0][1] == 'labels has no answer for "2" (it has 0, 1)'
    choice = template(tmp_path, 'kind = "choice"\ntext = "q"\nchoices = ["a", "b"]\nlabel = "l"\n')
    with pytest.raises(UserError) as caught:
        render_examples(choice, table(tmp_path, [{"l": 2}]))
    assert 'l is "2", which is none of 0, 1' in caught.value.problems[0][1]


def test_models_that_cannot_be_prompted_are_rejected(model, rows, tmp_path):
    backward = stemma.build("gpt2@tiny", model.network.vocab_size, ["objective.causal_lm.direction=backward"])
    backward.tokenizer = model.tokenizer
    with pytest.raises(UserError, match="reads texts from their end"):
        run_few_shot(backward, template(tmp_path, CLASSIFY), rows)
    bert = stemma.build("bert@tiny", model.network.vocab_size)
    with pytest.raises(UserError, match="fills gaps"):
        run_few_shot(bert, template(tmp_path, CLASSIFY), rows)
