"""`stemma predict` and `stemma evaluate`: every kind and way in, one line out for each row, scores that add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_tasks
from closeness import assert_close
from commands import stemma
from conftest import SEED
from watching import noted

from stemma.cli import main
from stemma.tasks.runs.finetune import TaskArguments, finetune

KINDS = ["classify", "pair", "regress", "choice", "qa", "tag", "rank"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A run of each kind, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("tuned")
    start = toy_tasks.save_model(folder / "model", vocabulary=320)
    made: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in made:
            made[kind] = folder / kind
            sets = toy_tasks.write_sets(folder, kind, 160, 32)
            finetune(TaskArguments(kind, sets), start, made[kind], epochs=6, changes=toy_tasks.FAST, seed=SEED)
        return made[kind]

    return run


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def kept(run: Path) -> list[dict]:
    """What fine-tuning said of its dev set."""
    return [one["prediction"] for one in lines((run / "dev.jsonl").read_text())]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_fine_tuning_and_evaluation_scores_them(tmp_path, tuned, kind):
    run = tuned(kind)
    data = run.parent / f"{kind}-dev.jsonl"
    done = stemma("predict", run, data)
    assert done.code == 0, done.err
    said = lines(done.out)
    assert [one["line"] for one in said] == list(range(1, 33))
    for one, before in zip(said, kept(run), strict=True):
        assert_close({key: one[key] for key in before}, before)
    judged = stemma("evaluate", run, "--data", data, "--json")
    assert judged.code == 0, judged.err
    result = json.loads((run / "result.json").read_text())
    assert judged.json["metrics"]["test"] == pytest.approx(result["metrics"]["dev"])
    for name, (low, high) in judged.json["intervals"].items():
        assert low <= judged.json["metrics"]["test"][name] <= high
    assert judged.json["examples_per_second"] > 0
    report = (run / "evaluation" / f"{kind}-dev" / "report.html").read_text()
    assert judged.json["report"].endswith(f"evaluation/{kind}-dev/report.html") and "Do it again" in report
    people = stemma("evaluate", run, "--data", data)  # the default place is written anew
    assert people.code == 0 and next(iter(judged.json["intervals"])) in people.out, people.err


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv", "txt", "stdin"])
def test_the_ways_in_say_the_same(tmp_path, tuned, form):
    run, rows = tuned("classify"), toy_tasks.rows("classify", 300, 5)  # more than are read at a time
    texts = [row["text"] for row in rows]
    file = tmp_path / f"in.{'txt' if form == 'stdin' else form}"
    contents = {"jsonl": "".join(json.dumps({"text": text, "label": None}) + "\n" for text in texts),
                "tsv": "\n".join(["id\ttext", *(f"{number}\t{text}" for number, text in enumerate(texts))]),
                "csv": "\n".join(["text", *(f'"{text}"' for text in texts)])}
    file.write_text(contents.get(form, "\n\n".join(texts) + "\n"))
    path, given = ("-", {"standard_input": str(file)}) if form == "stdin" else (file, {})
    done = stemma("predict", run, path, "--out", tmp_path / "out.jsonl", "--json", **given)
    assert done.code == 0, done.err
    assert done.json["rows"] == 300
    said = lines((tmp_path / "out.jsonl").read_text())
    assert [one["text"] for one in said] == texts
    assert sum(one["label"] == row["label"] for one, row in zip(said, rows, strict=True)) > 270
    assert all(sum(one["scores"].values()) == pytest.approx(1) for one in said)
    first, step = {"jsonl": (1, 1), "tsv": (2, 1), "csv": (2, 1)}.get(form, (1, 2))
    assert [one["line"] for one in said] == [first + step * number for number in range(300)]
    assert form != "tsv" or said[7]["id"] == "7"


def test_answers_and_entities_stand_where_they_say(tmp_path, tuned):
    row = toy_tasks.rows("qa", 1)[0]
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (said,) = stemma("predict", tuned("qa"), tmp_path / "q.jsonl", "--json").json["predictions"]
    assert all(row["context"][one["start"]:one["end"]] == one["text"] for one in said["candidates"])
    assert said["id"] == row["id"] and said["answer"] in row["context"]

    text = "The printer  repairs, by the window!"
    (tmp_path / "t.txt").write_text(text + "\n")
    (said,) = stemma("predict", tuned("tag"), tmp_path / "t.txt", "--json").json["predictions"]
    assert said["text"] == text and len(said["tags"]) == 8
    assert all(text[one["start"]:one["end"]] == one["text"] for one in said["entities"])
    assert {(one["type"], one["text"]) for one in said["entities"]} >= {("PER", "The printer")}


def test_entities_are_read_from_any_scheme():
    from stemma.tasks.kinds.tag import extract_entities as entities

    words = ["a", "b", "c", "d", "e"]
    text, places = " ".join(words), [(2 * number, 2 * number + 1) for number in range(5)]

    def found(*tags: str) -> list[tuple[str, str, float]]:
        said = {"tags": list(tags), "scores": [0.5, 0.7, 0.9, 0.9, 0.9]}
        return [(one["type"], one["text"], round(one["score"], 3)) for one in entities(said, text, places)]

    assert found("B-X", "I-X", "O", "B-X", "B-X") == [("X", "a b", 0.6), ("X", "d", 0.9), ("X", "e", 0.9)]
    assert found("I-X", "I-Y", "O", "I-X", "B-X") == [("X", "a", 0.5), ("Y", "b", 0.7), ("X", "d", 0.9),
                                                      ("X", "e", 0.9)]
    assert found("B-X", "E-X", "S-X", "O", "O") == found("B-X", "L-X", "U-X", "O", "O") == [("X", "a b", 0.6),
                                                                                           ("X", "c", 0.9)]
    assert found("NOUN", "O", "O", "O", "O") == []


def test_confusion_and_worst_errors_are_counted_right(tmp_path, tuned):
    rows = toy_tasks.rows("classify", 30, 9)
    for row in rows[:3]:
        row["label"] = {"good": "bad", "bad": "good"}[row["label"]]  # errors of the data
    data = toy_tasks.write_rows(tmp_path / "d.jsonl", rows)
    done = stemma("evaluate", tuned("classify"), "--data", data, "--out", tmp_path / "judged", "--metric", "accuracy",
                  "--metric", "f1", "--json")
    result, said = done.json, lines((tmp_path / "judged" / "predictions.jsonl").read_text())
    pairs = [(one["right"], one["prediction"]["label"]) for one in said]
    assert result["confusion"] == {"labels": ["bad", "good"], "counts": [
        [sum(pair == (right, label) for pair in pairs) for label in ("bad", "good")] for right in ("bad", "good")]}
    wrong = [(one["prediction"]["scores"][one["prediction"]["label"]], one["where"]) for one, pair in
             zip(said, pairs, strict=True) if pair[0] != pair[1]]
    assert [(one["sure"], one["where"]) for one in result["worst"]] == sorted(wrong, reverse=True) and len(wrong) >= 3
    assert set(result["metrics"]["test"]) == {"accuracy", "f1", "examples"}
    refused = stemma("evaluate", tuned("classify"), "--data", data, "--out", tmp_path / "judged")
    assert refused.code == 2 and "--overwrite" in refused.err


def test_what_is_wrong_is_said_in_a_sentence(tmp_path, tuned):
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
    for arguments, said in [
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
            assert done.code == 2 and said in done.err, (arguments, done)
        assert not (tmp_path / "out").exists()


def test_answers_say_how_far_they_are(tmp_path, tuned, capsys):
    data = str(tuned("classify").parent / "classify-dev.jsonl")
    for way, label in ((["predict", data], "answering"), (["predict", data, "--json"], "answering"),
                       (["evaluate", "--data", data], "predicting")):
        if way[-1] == data and way[0] == "predict":
            way += ["--out", str(tmp_path / "answers.jsonl")]
        with noted() as seen:
            assert main([way[0], str(tuned("classify")), *way[1:]]) == 0
        assert seen[label][0] == 32 and seen["predicting"] == (32, 32)
    assert capsys.readouterr().err == ""


def test_columns_of_a_file_without_a_header_are_counted(tmp_path, tuned):
    (tmp_path / "bare.tsv").write_text("7\tnoon\n8\tat night\n")
    said = stemma("predict", tuned("classify"), tmp_path / "bare.tsv", "--columns", "text=2", "--json").json
    assert [(one["line"], one["text"]) for one in said["predictions"]] == [(1, "noon"), (2, "at night")]


def test_a_long_document_and_a_long_file_are_read(tmp_path, tuned):
    (tmp_path / "long.txt").write_text("the old clerk reads " * 25_000 + "\nnoon\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"context": "a letter. " * 2_000 + "one missing leaf.",
                                                     "question": "what?"}))
    assert len(stemma("predict", tuned("classify"), tmp_path / "long.txt", "--json").json["predictions"]) == 2
    (said,) = stemma("predict", tuned("qa"), tmp_path / "long.jsonl", "--json").json["predictions"]
    assert said["candidates"] and "line" in said and "id" not in said


def test_labels_by_number_and_models_of_others(tmp_path, tuned):
    """A class of `transformers` without a card of ours: its labels may be numbers in the data, and pairs are judged."""
    run = tmp_path / "foreign"
    run.mkdir()
    for file in (tuned("pair") / "model").iterdir():
        if file.name not in ("tasks.json", "checksums.json", "recipe.toml"):
            (run / file.name).write_bytes(file.read_bytes())
    rows = [{**row, "label": int(row["label"] == "yes")} for row in toy_tasks.rows("pair", 20, 3)]
    data = toy_tasks.write_rows(tmp_path / "pairs.jsonl", rows)
    done = stemma("evaluate", run, "--data", data, "--out", tmp_path / "judged", "--json")
    assert done.code == 0, done.err
    assert "0 is no, 1 is yes" in done.err and done.json["confusion"]["labels"] == ["no", "yes"]
    ours = [{**row, "label": ["no", "yes"][row["label"]]} for row in rows]
    same = stemma("evaluate", tuned("pair"), "--data", toy_tasks.write_rows(tmp_path / "ours.jsonl", ours), "--json")
    assert done.json["metrics"] == same.json["metrics"]


def test_official_files_are_read_as_training_does(tmp_path, tuned):
    """Their labels are passed over, also those that the model has never seen; words stand in columns."""
    (tmp_path / "words.txt").write_text("The\tDT\tB-X\nprinter\tNN\tI-X\nreads\tVB\tO\n\nnoon\tNN\tO\n")
    done = stemma("predict", tuned("tag"), tmp_path / "words.txt", "--format", "conll2003", "--json")
    assert done.code == 0, done.err
    assert [one["text"] for one in done.json["predictions"]] == ["The printer reads", "noon"]
    assert {"type": "PER", "text": "The printer", "start": 0, "end": 11} in [
        {key: value for key, value in one.items() if key != "score"} for one in done.json["predictions"][0]["entities"]]
    (tmp_path / "msr.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tthe clerk\tnoon reads\n")
    done = stemma("predict", tuned("pair"), tmp_path / "msr.tsv", "--format", "mrpc", "--json")
    assert done.code == 0 and done.json["predictions"][0]["text_b"] == "noon reads"
    plain = stemma("predict", tuned("pair"), tmp_path / "msr.tsv")
    assert plain.code == 2 and "no column text_a" in plain.err
