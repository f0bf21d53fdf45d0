"""The linear baseline: equal to scikit-learn used directly, within its limits, beside the scores of a fine-tuning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_tasks
from commands import stemma as command
from conftest import captured_log_messages

import stemma
from stemma.lab.report.run_html import run_command, write_report
from stemma.tasks import linear_baseline
from stemma.tasks.linear_baseline import INVERSE_PENALTIES, LinearBaseline
from stemma.tasks.runs.baseline_scores import report_below
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.sweep import Sweep
from stemma.training.run_folder import read_run

SETS = {"english": (("a good film",), ("a bad film",)), "chinese": (("这本书很好看",), ("这本书很无聊",)),
        "pair": (("a film", "good"), ("a film", "bad"))}
WORDS = ["old", "clerk", "reads", "letter", "river", "good", "bad", "market", "house", "slowly", "书", "好看", "无聊"]


def examples(count: int, texts: int = 1) -> tuple[list[tuple[str, ...]], list[str]]:
    """Texts of random words; mostly one word decides the label."""
    rng = np.random.default_rng(count)
    rows = [tuple(" ".join(rng.choice(WORDS, size=6)) for _ in range(texts)) for _ in range(count)]
    return rows, ["yes" if ("good" in row[-1]) ^ (rng.random() < 0.15) else "no" for row in rows]


def reference_features(train: list[tuple[str, ...]], rows: list[tuple[str, ...]]):
    """(features of train, of rows) by scikit-learn, which is imported late because it is slow."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    made = []
    for index in range(len(train[0])):
        for options in ({"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)},
                        {"analyzer": "char", "ngram_range": (1, 4)}):
            vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=50_000, **options)
            made.append((vectorizer.fit_transform([row[index] for row in train]),
                         vectorizer.transform([row[index] for row in rows])))
    return tuple(hstack(parts).tocsr() for parts in zip(*made, strict=True))


@pytest.mark.parametrize("name", SETS)
def test_it_learns_and_is_deterministic(name):
    texts, labels = list(SETS[name]) * 10, ["yes", "no"] * 10
    first, second = LinearBaseline(texts, labels), LinearBaseline(texts, labels)
    assert first.predict(SETS[name]) == second.predict(SETS[name]) == ["yes", "no"]
    assert (first.estimator.coef_ == second.estimator.coef_).all()


@pytest.mark.parametrize(("texts", "weights"), [(1, None), (2, None), (1, {"yes": 3.0, "no": 1.0})])
def test_it_equals_logistic_regression_of_scikit_learn(texts, weights):
    from sklearn.linear_model import LogisticRegression

    (train, labels), (rows, _) = examples(80, texts), examples(60, texts)
    baseline = LinearBaseline(train, labels, weights)
    features, unseen = reference_features(train, rows)
    reference = LogisticRegression(C=10, max_iter=100, class_weight=weights).fit(features, labels)
    assert baseline.predict(rows) == reference.predict(unseen).tolist()
    np.testing.assert_allclose(baseline.estimator.coef_, reference.coef_, atol=1e-6)


def test_cross_validation_chooses_the_penalty_of_a_small_set():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    (train, labels), (rows, _) = examples(220), examples(60)
    baseline = LinearBaseline(train, labels)
    features, unseen = reference_features(train, rows)
    search = GridSearchCV(LogisticRegression(max_iter=100), {"C": INVERSE_PENALTIES}, cv=StratifiedKFold(5))
    reference = search.fit(features, labels)
    assert baseline.inverse_penalty == reference.best_params_["C"]
    assert baseline.predict(rows) == reference.predict(unseen).tolist()


def test_numbers_are_predicted_by_ridge_regression():
    from sklearn.linear_model import Ridge

    (train, labels), (rows, _) = examples(80, 2), examples(40, 2)
    numbers = [len(row[0]) + (label == "yes") for row, label in zip(train, labels, strict=True)]
    features, unseen = reference_features(train, rows)
    reference = Ridge(1 / 20, solver="cholesky").fit(features.toarray(), numbers)
    np.testing.assert_allclose(LinearBaseline(train, numbers, method="ridge").predict(rows), reference.predict(unseen),
                               atol=0.01)


def test_a_large_set_is_sampled(monkeypatch):
    (train, labels) = examples(90)
    monkeypatch.setattr(linear_baseline, "MAX_EXAMPLES", 30)
    assert LinearBaseline(train, labels).num_examples == 30
    monkeypatch.setattr(linear_baseline, "MAX_CHARACTERS", 200)
    monkeypatch.setattr(linear_baseline, "MAX_VOCABULARY_CHARACTERS", 100)
    rows = linear_baseline.sample(train, 30, 200)
    assert rows == sorted(set(rows)) == linear_baseline.sample(train, 30, 200)
    assert 150 < sum(len(train[row][0]) for row in rows) <= 200
    baseline = LinearBaseline(train, labels)
    assert baseline.num_examples == len(rows) < 10
    assert set(baseline.predict(train)) <= {"yes", "no"}
    assert linear_baseline.sample(train, 30, 1) == linear_baseline.sample(train, 1, 200)  # one at least


@pytest.mark.parametrize(("texts", "labels", "expected"), [
    ([("a",), ("b",)], ["yes", "yes"], "yes"), ([(" ",), ("",), ("",)], ["yes", "no", "no"], "no"),
    ([("a", ""), ("b", " ")] * 3, ["yes", "no"] * 3, "yes")])
def test_one_class_and_empty_texts(texts, labels, expected):
    assert LinearBaseline(texts, labels).predict([("a", "c")]) == [expected]


def test_a_class_may_have_no_weight_and_may_be_rare():
    train, labels = examples(220)
    assert set(LinearBaseline(train, labels, {"yes": 1.0, "no": 0.0}).predict(train)) == {"yes"}
    three = ["maybe", *labels[1:]]
    assert len(set(LinearBaseline(train, three).predict(train))) >= 2


def test_scikit_learn_is_imported_late():
    code = "import sys, stemma, stemma.tasks.linear_baseline; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- beside the scores of a fine-tuning -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_tasks.save_model(folder / "model")
    for kind in ("classify", "pair", "regress", "choice"):
        toy_tasks.write_sets(folder, kind, 64, 24, 16)
    return folder


def run_once(toy: Path, out: Path, kind: str = "classify", **options):
    files = {split: toy / f"{kind}-{split}.jsonl" for split in ("train", "dev", "test")}
    return finetune(TaskArguments(kind, files), toy / "model", out, steps=1, **options)


@pytest.fixture(scope="module")
def tuned(toy):
    with captured_log_messages() as messages:
        result = run_once(toy, toy / "tuned")
    return toy / "tuned", result, messages


def test_the_result_has_the_scores_of_scikit_learn(toy, tuned):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    run, result, messages = tuned
    splits = {split: [json.loads(line) for line in (toy / f"classify-{split}.jsonl").read_text().splitlines()]
              for split in ("train", "dev", "test")}
    train, dev = ([(row["text"],) for row in splits[split]] for split in ("train", "dev"))
    features, unseen = reference_features(train, dev)
    reference = LogisticRegression(C=10).fit(features, [row["label"] for row in splits["train"]])
    gold, predicted = [row["label"] for row in splits["dev"]], reference.predict(unseen)
    linear = result["baseline"]["linear"]
    assert linear["dev"] == {"accuracy": accuracy_score(gold, predicted), "examples": 24,
                             "macro_f1": f1_score(gold, predicted, average="macro")}
    assert set(linear) == {"dev", "test", "fit"} and linear["dev"]["accuracy"] > 0.8
    assert linear["fit"] | {"seconds": 0} == {"method": "TF-IDF + logistic regression", "examples": 64,
                                              "inverse_penalty": 10.0, "seconds": 0}
    assert json.loads((run / "result.json").read_text()) == result
    model, baseline = result["metrics"]["dev"]["accuracy"], linear["dev"]["accuracy"]
    assert model < baseline  # after one step
    (said,) = [text for text in messages if "linear baseline" in text]
    assert said == (f"dev: the model's accuracy of {model:.4f} is worse than the linear baseline's {baseline:.4f}; try "
                    "more epochs, another training.learning_rate or a model with more pre-training.")
    write_report(run)
    assert "dev: accuracy, linear baseline" in (run / "report.html").read_text()


def test_the_terminal_shows_it_beside_the_scores(toy, tuned):
    again = command("resume", tuned[0], report=False)
    assert f"dev, linear baseline (TF-IDF + logistic regression) · accuracy " \
           f"{tuned[1]['baseline']['linear']['dev']['accuracy']:.4f} · macro_f1" in again.out


def test_a_model_that_is_as_good_is_not_told_so(tuned, caplog):
    task_config = stemma.load(tuned[0]).task_config()
    for accuracy, told in ((0.7, False), (0.6, False), (0.59, True)):
        caplog.clear()
        report_below(task_config, "dev", {"accuracy": accuracy}, {"accuracy": 0.6})
        assert bool(caplog.messages) == told


def test_an_error_is_compared_downwards(tmp_path, toy):
    with captured_log_messages() as messages:
        files = {split: toy / f"regress-{split}.jsonl" for split in ("train", "dev")}
        result = finetune(TaskArguments("regress", files, metrics=["mean_squared_error"]), toy / "model",
                          tmp_path / "run", steps=1)
    scores = [part["dev"]["mean_squared_error"] for part in (result["metrics"], result["baseline"]["linear"])]
    assert scores[1] < scores[0] and any("worse than the linear" in text for text in messages)  # lower is better
    assert result["baseline"]["linear"]["fit"]["method"] == "TF-IDF + ridge regression"


def test_no_baseline(tmp_path, toy):
    assert "baseline" not in run_once(toy, tmp_path / "choice", "choice", baseline=False)  # it does not suit this kind
    assert "--no-baseline" not in run_command(*read_run(tmp_path / "choice"), tmp_path / "choice")
    result = run_once(toy, tmp_path / "run", baseline=False)
    assert "baseline" not in result
    write_report(tmp_path / "run")
    assert "--no-baseline" in (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize("kind", ["choice", "tag", "qa", "rank", "conll2003"])
def test_no_baseline_is_refused_where_there_is_none(tmp_path, toy, kind):
    refused = command("finetune", kind, "--model", toy / "model", "--train", "train", "--dev", "dev", "--out",
                      tmp_path / "run", "--no-baseline")
    name = "tag" if kind == "conll2003" else kind
    assert (refused.code, refused.err) == (
        2, f"error: --no-baseline has no effect with {name}, which has no linear baseline; leave it out.\n")


def test_a_sweep_fits_it_once(tmp_path, toy, tuned, monkeypatch):
    fitted = []
    real = LinearBaseline.__init__
    monkeypatch.setattr(LinearBaseline, "__init__", lambda self, *given: (fitted.append(1), real(self, *given))[1])
    with captured_log_messages() as messages:
        result = run_once(toy, tmp_path / "run", trials=Sweep((1e-5, 1e-4)))
    (said,) = [text for text in messages if "linear baseline" in text]
    assert said.endswith("try more epochs or a model with more pre-training.")  # several learning rates were tried
    assert result["baseline"]["linear"]["dev"] == tuned[1]["baseline"]["linear"]["dev"] and fitted == [1]


def test_evaluate_fits_it_to_the_examples_of_the_run(tmp_path, toy, tuned):
    run, result, _ = tuned
    data = toy / "classify-dev.jsonl"
    done = command("evaluate", run, "--data", data, "--json")
    assert done.json["baseline"]["linear"]["test"] == result["baseline"]["linear"]["dev"], done.err
    assert "classify-dev.jsonl: the model's accuracy" in done.err
    printed = command("evaluate", run, "--data", data)
    score = f"{result['baseline']['linear']['dev']['accuracy']:.4f}"
    assert printed.out.splitlines()[0].endswith("linear baseline") and printed.out.splitlines()[1].endswith(score)
    page = (run / "evaluation/classify-dev/report.html").read_text()
    assert "linear baseline" in page
    without = command("evaluate", run, "--data", data, "--no-baseline")
    assert "linear baseline" not in without.out + without.err
    assert "--no-baseline" in (run / "evaluation/classify-dev/report.html").read_text()
    assert "baseline" not in stemma.evaluate(run / "model", data)  # which has no training examples
    assert stemma.evaluate(run, data)["baseline"] and "baseline" not in stemma.evaluate(run, data, baseline=False)


def test_evaluate_needs_no_training_examples(tmp_path, toy):
    run_once(toy, tmp_path / "run", baseline=False)
    (tmp_path / "run/train.jsonl").write_text("{}\n")
    with captured_log_messages() as messages:
        assert "baseline" not in stemma.evaluate(tmp_path / "run", toy / "classify-dev.jsonl")
    assert any(text.startswith("no linear baseline: ") and "train.jsonl is damaged" in text for text in messages)
    (tmp_path / "run/train.jsonl").unlink()
    with captured_log_messages() as messages:
        assert "baseline" not in stemma.evaluate(tmp_path / "run", toy / "classify-dev.jsonl")
    assert any(text.startswith("no linear baseline: ") and "train.jsonl is missing" in text for text in messages)
    with captured_log_messages() as messages:
        stemma.evaluate(tmp_path / "run/model", toy / "classify-dev.jsonl")  # never had training examples
    assert not any("linear baseline" in text for text in messages)
