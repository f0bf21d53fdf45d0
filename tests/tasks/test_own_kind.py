"""A user's task kind in one file (docs/how-to/extending.md), with every command that handles tasks."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import plugin_files
import pytest
import toy_tasks
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as stemma

PLUGIN = ["--plugin", "my_spans.py"]
FAST = [*toy_tasks.FAST, "training.checkpoint_every=4", "training.validate_every=40"]
SMALL = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=32",
         "corpus.sequence_length=24", "training.batch_size=4", "training.warmup_steps=4",
         "tokenizer.vocab_size=120"]
FILES = ("model/model.safetensors", "model/tasks.json", "model/config.json", "dev.jsonl", "recipe.toml")


@pytest.fixture(scope="module")
def plugin_runs(tmp_path_factory) -> Path:
    """A folder with the plug-in, its examples, a fine-tuned model, and the same fine-tuning killed with SIGKILL."""
    folder = tmp_path_factory.mktemp("kind")
    toy_tasks.save_model(folder / "model")
    plugin_files.write_spans(folder)
    command = ["finetune", "spans", "--model", "model", "--train", "spans-train.jsonl", "--dev", "spans-dev.jsonl",
               "--steps", 60, "--json", *PLUGIN, *FAST]
    complete = stemma(*command, "--out", "complete", folder=folder)
    assert complete.code == 0, complete.err
    (folder / "complete.json").write_text(complete.out)
    start(*command, "--out", "killed", folder=folder).kill_when(lambda: has_checkpoint(folder / "killed", 8))
    return folder


def done(*words, folder: Path):
    """Run a command with the plug-in; it must succeed."""
    result = stemma(*words, "--json", *PLUGIN, folder=folder)
    assert result.code == 0, result.err
    return result


def test_a_custom_kind_trains(plugin_runs):
    output = json.loads((plugin_runs / "complete.json").read_text())
    assert output["task"] == "spans" and output["metrics"]["dev"]["f1"] > 0.8
    assert output["validation_loss"] < output["unigram_loss"] / 4


def test_a_killed_run_resumes_to_the_same_bytes_with_the_plugin(plugin_runs):
    refused = stemma("resume", "killed", folder=plugin_runs)
    assert refused.code == 2 and "killed uses the plug-in my_spans.py" in refused.err
    done("resume", "killed", folder=plugin_runs)
    assert [(plugin_runs / "killed" / name).read_bytes() for name in FILES] == \
           [(plugin_runs / "complete" / name).read_bytes() for name in FILES]


def test_predict_reads_lines_and_tables_and_requires_the_plugin(plugin_runs):
    (plugin_runs / "lines.txt").write_text("a young scribe reads seven pages\n")
    predictions = done("predict", "complete", "lines.txt", folder=plugin_runs).json["predictions"]
    assert predictions == [{"line": 1, "text": "a young scribe reads seven pages", "texts": ["scribe", "seven pages"],
                     "spans": [[8, 14, "person"], [21, 32, "thing"]]}]
    answered = done("predict", "complete", "spans-dev.jsonl", folder=plugin_runs).json["predictions"]
    assert len(answered) == 16 and all(len(prediction["spans"]) == len(prediction["texts"]) for prediction in answered)
    for model in ("complete", "complete/model"):
        refused = stemma("predict", model, "lines.txt", folder=plugin_runs)
        assert refused.code == 2 and "uses the plug-in my_spans.py, which is code" in refused.err
    assert set(tomllib.loads((plugin_runs / "complete/model/recipe.toml").read_text())["plugins"]) == {"my_spans.py"}


def test_evaluate_shows_its_tables_on_the_terminal_and_in_the_report(plugin_runs):
    shown = stemma("evaluate", "complete", "--data", "spans-dev.jsonl", "--out", "judged", *PLUGIN, folder=plugin_runs)
    assert shown.code == 0 and "gold   predicted" in shown.out, shown.err
    result = json.loads((plugin_runs / "judged/result.json").read_text())
    assert result["kind"] == "spans" and result["labels"][0][:2] == ["person", 16]
    page = (plugin_runs / "judged/report.html").read_text()
    assert "Each label" in page and "F1 of whole spans" in page
    low, high = result["intervals"]["f1"]
    assert low <= result["metrics"]["test"]["f1"] <= high


def test_a_custom_kind_trains_together_with_another_task(plugin_runs):
    toy_tasks.write_sets(plugin_runs, "classify", 32, 8)
    (plugin_runs / "plan.toml").write_text(
        '[tasks.parts]\nkind = "spans"\ntrain = "spans-train.jsonl"\ndev = "spans-dev.jsonl"\ndropout = 0.1\n'
        '[tasks.mood]\nkind = "classify"\ntrain = "classify-train.jsonl"\ndev = "classify-dev.jsonl"\n')
    output = done("multitask", "plan.toml", "--model", "model", "--out", "both", "--steps", 4, folder=plugin_runs)
    assert set(output.json["metrics"]["dev"]["tasks"]) == {"parts", "mood"}
    predicted = done("predict", "both", "spans-dev.jsonl", "--task", "parts", folder=plugin_runs)
    assert "spans" in predicted.json["predictions"][0]


def test_recipes_are_compared_on_a_custom_kind(plugin_runs, text_file):
    lab = done("compare", "bert@tiny", "electra@tiny", "--corpus", text_file, "--tokens", 4000, "--seeds", 1, "--out",
               "lab", "--task", "spans", "--train", "spans-train.jsonl", "--dev", "spans-dev.jsonl", "--epochs", 1,
               *SMALL, folder=plugin_runs)
    assert "spans.f1" in json.dumps(lab.json)


def test_problems_of_custom_examples_are_reported(plugin_runs):
    (plugin_runs / "wrong.jsonl").write_text('{"text": "a clerk", "spans": [[2, 70, "person"]]}\n')
    refused = stemma("finetune", "spans", "--model", "model", "--train", "wrong.jsonl", "--dev", "spans-dev.jsonl",
                     "--out", "bad", *PLUGIN, folder=plugin_runs)
    assert refused.code == 2 and "does not lie in the text" in refused.err
    unknown = stemma("finetune", "spans", "--model", "model", "--train", "wrong.jsonl", "--dev", "wrong.jsonl", "--out",
                     "bad", folder=plugin_runs)
    assert unknown.code == 2 and 'no task "spans"' in unknown.err


TRIPLES = '''
from stemma.extend import ClassificationTask, TextExample, register

@register("task", "triple")
class Triple(ClassificationTask):
    description = "One of several classes for three texts."
    max_texts = 3
    accepts_lines = False

    def read(self, path, columns, reading):
        table = reading.table(path)
        return [TextExample(table.location(number), tuple(row[name] for name in ("claim", "for", "against")),
                            row.get("label")) for number, row in enumerate(table.rows)]
'''


@pytest.mark.parametrize("model", ["bert@tiny", "xlnet@tiny"])
def test_a_kind_of_three_texts_trains_and_predicts(tmp_path, model):
    """Segments 0, 1, 2 if the network has relative segments, otherwise as many as it has embeddings for."""
    toy_tasks.save_model(tmp_path / "model", model)
    (tmp_path / "my_triples.py").write_text(TRIPLES)
    rows = [{"claim": first["text"], "for": "the old clerk", "against": second["text"], "label": second["label"]}
            for first, second in zip(toy_tasks.rows("classify", 48), toy_tasks.rows("classify", 48, 1), strict=True)]
    toy_tasks.write_rows(tmp_path / "rows.jsonl", rows)
    words = ["--json", "--plugin", "my_triples.py"]
    result = stemma("finetune", "triple", "--model", "model", "--train", "rows.jsonl", "--dev", "rows.jsonl", "--out",
                   "run", "--steps", 4, *words, folder=tmp_path)
    assert result.code == 0, result.err
    card = json.loads((tmp_path / "run/model/tasks.json").read_text())["task"]
    assert card["more"] == ["start A separator B:1 separator:1 C:1 separator:1" if model == "bert@tiny" else
                            "A separator B:1 separator:1 C:2 separator:2 start:3"]
    predictions = stemma("predict", "run", "rows.jsonl", *words, folder=tmp_path).json["predictions"]
    assert predictions[0]["text_c"] == rows[0]["against"] and set(predictions[0]["scores"]) == {"good", "bad"}
