"""`stemma predict` and `stemma evaluate`: every kind of task and input format, metrics, reports, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_tasks
from closeness import assert_close
from commands import stemma
from conftest import SEED
from progress_recorder import recorded_stages

from stemma.cli import main
from stemma.tasks.runs.finetune import TaskArguments, finetune

KINDS = ["classify", "pair", "regress", "choice", "qa", "tag", "rank"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A function that returns a run of a kind of task and trains it at the first call."""
    folder = tmp_path_factory.mktemp("tuned")
    start = toy_tasks.save_model(folder / "model", vocabulary=320)
    runs: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in runs:
            runs[kind] = folder / kind
            sets = toy_tasks.write_sets(folder, kind, 160, 32)
            finetune(TaskArguments(kind, sets), start, runs[kind], epochs=6, changes=toy_tasks.FAST, seed=SEED)
        return runs[kind]

    return run


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def dev_predictions(run: Path) -> list[dict]:
    """The predictions for the dev set, as fine-tuning stored them."""
    return [row["prediction"] for row in lines((run / "dev.jsonl").read_text())]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_and_metrics_equal_those_of_fine_tuning(tmp_path, tuned, kind):
    run = tuned(kind)
    data = run.parent / f"{kind}-dev.jsonl"
    done = stemma("predict", run, data)
    assert done.code == 0, done.err
    predictions = lines(done.out)
    assert [row["line"] for row in predictions] == list(range(1, 33))
    for row, expected in zip(predictions, dev_predictions(run), strict=True):
        assert_close({key: row[key] for key in expected}, expected)
    evaluated = stemma("evaluate", run, "--data", data, "--json")
    assert evaluated.code == 0, evaluated.err
    result = json.loads((run / "result.json").read_text())
    assert evaluated.json["metrics"]["test"] == pytest.approx(result["metrics"]["dev"])
    for name, (low, high) in evaluated.json["intervals"].items():
        assert low <= evaluated.json["metrics"]["test"][name] <= high
    assert evaluated.json["examples_per_second"] > 0
    report = (run / "evaluation" / f"{kind}-dev" / "report.html").read_text()
    assert evaluated.json["report"].endswith(f"evaluation/{kind}-dev/report.html") and "Do it again" in report
    printed = stemma("evaluate", run, "--data", data)  # the default folder is overwritten
    assert printed.code == 0 and next(iter(evaluated.json["intervals"])) in printed.out, printed.err


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv", "txt", "stdin"])
def test_every_input_format_gives_a_prediction_for_each_row(tmp_path, tuned, form):
    run, rows = tuned("classify"), toy_tasks.rows("classify", 300, 5)  # more than one chunk
    texts = [row["text"] for row in rows]
    file = tmp_path / f"in.{'txt' if form == 'stdin' else form}"
    contents = {"jsonl": "".join(json.dumps({"text": text, "label": None}) + "\n" for text in texts),
                "tsv": "\n".join(["id\ttext", *(f"{index}\t{text}" for index, text in enumerate(texts))]),
                "csv": "\n".join(["text", *(f'"{text}"' for text in texts)])}
    file.write_text(contents.get(form, "\n\n".join(texts) + "\n"))
    path, options = ("-", {"standard_input": str(file)}) if form == "stdin" else (file, {})
    done = stemma("predict", run, path, "--out", tmp_path / "out.jsonl", "--json", **options)
    assert done.code == 0, done.err
    assert done.json["rows"] == 300
    predictions = lines((tmp_path / "out.jsonl").read_text())
    assert [prediction["text"] for prediction in predictions] == texts
    assert sum(prediction["label"] == row["label"] for prediction, row in zip(predictions, rows, strict=True)) > 270
    assert all(sum(prediction["scores"].values()) == pytest.approx(1) for prediction in predictions)
    first_line, step = {"jsonl": (1, 1), "tsv": (2, 1), "csv": (2, 1)}.get(form, (1, 2))
    assert [prediction["line"] for prediction in predictions] == [first_line + step * index for index in range(300)]
    assert form != "tsv" or predictions[7]["id"] == "7"


def test_answers_and_entities_have_correct_offsets(tmp_path, tuned):
    row = toy_tasks.rows("qa", 1)[0]
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (prediction,) = stemma("predict", tuned("qa"), tmp_path / "q.jsonl", "--json").json["predictions"]
    assert all(row["context"][span["start"]:span["end"]] == span["text"] for span in prediction["candidates"])
    assert prediction["id"] == row["id"] and prediction["answer"] in row["context"]

    text = "The printer  repairs, by the window!"
    (tmp_path / "t.txt").write_text(text + "\n")
    (prediction,) = stemma("predict", tuned("tag"), tmp_path / "t.txt", "--json").json["predictions"]
    assert prediction["text"] == text and len(prediction["tags"]) == 8
    assert all(text[entity["start"]:entity["end"]] == entity["text"] for entity in prediction["entities"])
    assert {(entity["type"], entity["text"]) for entity in prediction["entities"]} >= {("PER", "The printer")}


def test_entities_are_extracted_from_every_tagging_scheme():
    from stemma.tasks.kinds.tag import extract_entities

    words = ["a", "b", "c", "d", "e"]
    text, offsets = " ".join(words), [(2 * index, 2 * index + 1) for index in range(5)]

    def entities(*tags: str) -> list[tuple[str, str, float]]:
        prediction = {"tags": list(tags), "scores": [0.5, 0.7, 0.9, 0.9, 0.9]}
        return [(entity["type"], entity["text"], round(entity["score"], 3))
                for entity in extract_entities(prediction, text, offsets)]

    assert entities("B-X", "I-X", "O", "B-X", "B-X") == [("X", "a b", 0.6), ("X", "d", 0.9), ("X", "e", 0.9)]
    assert entities("I-X", "I-Y", "O", "I-X", "B-X") == [("X", "a", 0.5), ("Y", "b", 0.7), ("X", "d", 0.9),
                                                         ("X", "e", 0.9)]
    bioes, bilou = entities("B-X", "E-X", "S-X", "O", "O"), entities("B-X", "L-X", "U-X", "O", "O")
    assert bioes == bilou == [("X", "a b", 0.6), ("X", "c", 0.9)]
    assert entities("NOUN", "O", "O", "O", "O") == []


def test_the_confusion_matrix_and_the_most_confident_errors_match_the_predictions(tmp_path, tuned):
    rows = toy_tasks.rows("classify", 30, 9)
    for row in rows[:3]:
        row["label"] = {"good": "bad", "bad": "good"}[row["label"]]  # wrong labels in the data
    data = toy_tasks.write_rows(tmp_path / "d.jsonl", rows)
    done = stemma("evaluate", tuned("classify"), "--data", data, "--out", tmp_path / "evaluation",
                  "--metric", "accuracy", "--metric", "f1", "--json")
    result, rows = done.json, lines((tmp_path / "evaluation" / "predictions.jsonl").read_text())
    pairs = [(row["gold"], row["prediction"]["label"]) for row in rows]
    assert result["confusion"] == {"labels": ["bad", "good"], "counts": [
        [sum(pair == (gold, label) for pair in pairs) for label in ("bad", "good")] for gold in ("bad", "good")]}
    errors = [(row["prediction"]["scores"][predicted], row["where"])
              for row, (gold, predicted) in zip(rows, pairs, strict=True) if gold != predicted]
    assert [(error["confidence"], error["where"]) for error in result["worst"]] == sorted(errors, reverse=True)
    assert len(errors) >= 3
    assert set(result["metrics"]["test"]) == {"accuracy", "f1", "examples"}
    refused = stemma("evaluate", tuned("classify"), "--data", data, "--out", tmp_path / "evaluation")
    assert refused.code == 2 and "--overwrite" in refused.err


def test_bad_input_is_an_error_message_and_leaves_no_files(tmp_path, tuned):
    run = tuned("classify")
    rows = toy_tasks.write_rows(tmp_path / "rows.jsonl", toy_tasks.rows("classify", 3))
    unseen = toy_tasks.write_rows(tmp_path / "unseen.jsonl", [{"text": "noon", "label": "godo"}])
    bare = toy_tasks.write_rows(tmp_path / "bare.jsonl", [{"text": "noon"}])
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "noon"}\n{"text": \n')
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    ragged = tmp_path / "ragged.tsv"
    ragged.write_text("id\ttext\n1\tnoon\n2\n")
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("one text\n")
    bare_rows = tmp_path / "bare.tsv"
    bare_rows.write_text("noon\t7\nat night\t8\n")
    blank = toy_tasks.write_rows(tmp_path / "blank.jsonl", [{"text": "noon"}, {"text": " "}])
    for arguments, message in [
            (("evaluate", run, "--data", unseen), 'did you mean "good"'),
            (("evaluate", run, "--data", bare), "stemma predict"),
            (("evaluate", run, "--data", rows, "--metric", "map"), "no such metric"),
            (("evaluate", run, "--data", rows, "--format", "squad"), "choose another --format"),
            (("evaluate", run, "--data", rows, "--task", "other"), 'no task "other"'),
            (("predict", run.parent / "model", rows), "answers no task"),
            (("predict", run, broken), "line 2 is not JSON"),
            (("predict", run, empty), "is empty"),
            (("predict", run, ragged), "line 3 has 1 cell where the header has 2"),
            (("predict", run, blank), 'line 2: nothing in column "text"'),
            (("predict", run, rows, "--columns", "text=review"), "no column review"),
            (("predict", run, bare_rows), "no header? Then count the columns: --columns text=1"),
            (("predict", tuned("pair"), pairs), "two texts with a tab"),
            (("predict", tuned("qa"), pairs), "JSON lines")]:
        for more in ((), ("--out", tmp_path / "out")):
            done = stemma(*arguments, *more)
            assert done.code == 2 and message in done.err, (arguments, done)
        assert not (tmp_path / "out").exists()


def test_predict_and_evaluate_report_progress(tmp_path, tuned, capsys):
    data = str(tuned("classify").parent / "classify-dev.jsonl")
    out = str(tmp_path / "predictions.jsonl")
    for verb, options, stage in (("predict", [data, "--out", out], "answering"),
                                 ("predict", [data, "--json"], "answering"),
                                 ("evaluate", ["--data", data], "predicting")):
        with recorded_stages() as stages:
            assert main([verb, str(tuned("classify")), *options]) == 0
        assert stages[stage][0] == 32 and stages["predicting"] == (32, 32)
    assert capsys.readouterr().err == ""


def test_a_file_without_a_header_is_read_by_column_numbers(tmp_path, tuned):
    (tmp_path / "bare.tsv").write_text("7\tnoon\n8\tat night\n")
    result = stemma("predict", tuned("classify"), tmp_path / "bare.tsv", "--columns", "text=2", "--json").json
    assert [(row["line"], row["text"]) for row in result["predictions"]] == [(1, "noon"), (2, "at night")]


def test_long_texts_and_contexts_are_predicted(tmp_path, tuned):
    (tmp_path / "long.txt").write_text("the old clerk reads " * 25_000 + "\nnoon\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"context": "a letter. " * 2_000 + "one missing leaf.",
                                                     "question": "what?"}))
    assert len(stemma("predict", tuned("classify"), tmp_path / "long.txt", "--json").json["predictions"]) == 2
    (prediction,) = stemma("predict", tuned("qa"), tmp_path / "long.jsonl", "--json").json["predictions"]
    assert prediction["candidates"] and "line" in prediction and "id" not in prediction


def test_a_transformers_model_is_evaluated_with_label_ids(tmp_path, tuned):
    """A folder of transformers without tasks.json: the data may have label ids."""
    run = tmp_path / "foreign"
    run.mkdir()
    for file in (tuned("pair") / "model").iterdir():
        if file.name not in ("tasks.json", "checksums.json", "recipe.toml"):
            (run / file.name).write_bytes(file.read_bytes())
    rows = [{**row, "label": int(row["label"] == "yes")} for row in toy_tasks.rows("pair", 20, 3)]
    data = toy_tasks.write_rows(tmp_path / "pairs.jsonl", rows)
    done = stemma("evaluate", run, "--data", data, "--out", tmp_path / "evaluation", "--json")
    assert done.code == 0, done.err
    assert "0 is no, 1 is yes" in done.err and done.json["confusion"]["labels"] == ["no", "yes"]
    named = [{**row, "label": ["no", "yes"][row["label"]]} for row in rows]
    expected = stemma("evaluate", tuned("pair"), "--data", toy_tasks.write_rows(tmp_path / "named.jsonl", named),
                      "--json")
    assert done.json["metrics"] == expected.json["metrics"]


def test_official_files_are_read_as_in_training(tmp_path, tuned):
    """Labels in the file are ignored, also those that the model does not have."""
    (tmp_path / "words.txt").write_text("The\tDT\tB-X\nprinter\tNN\tI-X\nreads\tVB\tO\n\nnoon\tNN\tO\n")
    done = stemma("predict", tuned("tag"), tmp_path / "words.txt", "--format", "conll2003", "--json")
    assert done.code == 0, done.err
    assert [row["text"] for row in done.json["predictions"]] == ["The printer reads", "noon"]
    entities = done.json["predictions"][0]["entities"]
    assert {"type": "PER", "text": "The printer", "start": 0, "end": 11} in [
        {key: value for key, value in entity.items() if key != "score"} for entity in entities]
    (tmp_path / "msr.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tthe clerk\tnoon reads\n")
    done = stemma("predict", tuned("pair"), tmp_path / "msr.tsv", "--format", "mrpc", "--json")
    assert done.code == 0 and done.json["predictions"][0]["text_b"] == "noon reads"
    plain = stemma("predict", tuned("pair"), tmp_path / "msr.tsv")
    assert plain.code == 2 and "no column text_a" in plain.err
