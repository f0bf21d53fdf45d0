"""A user's task kind in one file (docs/how-to/extending.md), with every command that handles tasks."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import own_parts
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
def made(tmp_path_factory) -> Path:
    """A folder with the plug-in, its examples, a fine-tuned model, and the same fine-tune killed with -9."""
    folder = tmp_path_factory.mktemp("kind")
    toy_tasks.save_model(folder / "model")
    own_parts.write_spans(folder)
    command = ["finetune", "spans", "--model", "model", "--train", "spans-train.jsonl", "--dev", "spans-dev.jsonl",
               "--steps", 60, "--json", *PLUGIN, *FAST]
    whole = stemma(*command, "--out", "whole", folder=folder)
    assert whole.code == 0, whole.err
    (folder / "whole.json").write_text(whole.out)
    start(*command, "--out", "killed", folder=folder).kill_when(lambda: has_checkpoint(folder / "killed", 8))
    return folder


def done(*words, folder: Path):
    """The verb with the plug-in named, which must succeed."""
    found = stemma(*words, "--json", *PLUGIN, folder=folder)
    assert found.code == 0, found.err
    return found


def test_a_custom_kind_trains(made):
    told = json.loads((made / "whole.json").read_text())
    assert told["task"] == "spans" and told["metrics"]["dev"]["f1"] > 0.8
    assert told["validation_loss"] < told["unigram_loss"] / 4


def test_a_killed_run_resumes_to_the_same_bytes_with_the_plugin(made):
    refused = stemma("resume", "killed", folder=made)
    assert refused.code == 2 and "killed uses the plug-in my_spans.py" in refused.err
    done("resume", "killed", folder=made)
    assert [(made / "killed" / name).read_bytes() for name in FILES] == \
           [(made / "whole" / name).read_bytes() for name in FILES]


def test_predict_reads_lines_and_tables_and_requires_the_plugin(made):
    (made / "lines.txt").write_text("a young scribe reads seven pages\n")
    said = done("predict", "whole", "lines.txt", folder=made).json["predictions"]
    assert said == [{"line": 1, "text": "a young scribe reads seven pages", "texts": ["scribe", "seven pages"],
                     "spans": [[8, 14, "person"], [21, 32, "thing"]]}]
    answered = done("predict", "whole", "spans-dev.jsonl", folder=made).json["predictions"]
    assert len(answered) == 16 and all(len(one["spans"]) == len(one["texts"]) for one in answered)
    for place in ("whole", "whole/model"):
        refused = stemma("predict", place, "lines.txt", folder=made)
        assert refused.code == 2 and "uses the plug-in my_spans.py, which is code" in refused.err
    assert set(tomllib.loads((made / "whole/model/recipe.toml").read_text())["plugins"]) == {"my_spans.py"}


def test_evaluate_shows_its_tables_on_the_terminal_and_in_the_report(made):
    shown = stemma("evaluate", "whole", "--data", "spans-dev.jsonl", "--out", "judged", *PLUGIN, folder=made)
    assert shown.code == 0 and "gold   predicted" in shown.out, shown.err
    result = json.loads((made / "judged/result.json").read_text())
    assert result["kind"] == "spans" and result["labels"][0][:2] == ["person", 16]
    page = (made / "judged/report.html").read_text()
    assert "Each label" in page and "F1 of whole spans" in page
    low, high = result["intervals"]["f1"]
    assert low <= result["metrics"]["test"]["f1"] <= high


def test_it_trains_together_with_another_task(made):
    toy_tasks.write_sets(made, "classify", 32, 8)
    (made / "plan.toml").write_text(
        '[tasks.parts]\nkind = "spans"\ntrain = "spans-train.jsonl"\ndev = "spans-dev.jsonl"\ndropout = 0.1\n'
        '[tasks.mood]\nkind = "classify"\ntrain = "classify-train.jsonl"\ndev = "classify-dev.jsonl"\n')
    told = done("multitask", "plan.toml", "--model", "model", "--out", "both", "--steps", 4, folder=made)
    assert set(told.json["metrics"]["dev"]["tasks"]) == {"parts", "mood"}
    asked = done("predict", "both", "spans-dev.jsonl", "--task", "parts", folder=made)
    assert "spans" in asked.json["predictions"][0]


def test_recipes_are_compared_on_it(made, text_file):
    lab = done("compare", "bert@tiny", "electra@tiny", "--corpus", text_file, "--tokens", 4000, "--seeds", 1, "--out",
               "lab", "--task", "spans", "--train", "spans-train.jsonl", "--dev", "spans-dev.jsonl", "--epochs", 1,
               *SMALL, folder=made)
    assert "spans.f1" in json.dumps(lab.json)


def test_problems_of_its_examples_are_reported(made):
    (made / "wrong.jsonl").write_text('{"text": "a clerk", "spans": [[2, 70, "person"]]}\n')
    refused = stemma("finetune", "spans", "--model", "model", "--train", "wrong.jsonl", "--dev", "spans-dev.jsonl",
                     "--out", "bad", *PLUGIN, folder=made)
    assert refused.code == 2 and "does not lie in the text" in refused.err
    unknown = stemma("finetune", "spans", "--model", "model", "--train", "wrong.jsonl", "--dev", "wrong.jsonl", "--out",
                     "bad", folder=made)
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
def test_a_kind_of_three_texts(tmp_path, model):
    """Segments 0, 1, 2 where a network tells any two apart, and as many as it has otherwise."""
    toy_tasks.save_model(tmp_path / "model", model)
    (tmp_path / "my_triples.py").write_text(TRIPLES)
    rows = [{"claim": one["text"], "for": "the old clerk", "against": other["text"], "label": other["label"]}
            for one, other in zip(toy_tasks.rows("classify", 48), toy_tasks.rows("classify", 48, 1), strict=True)]
    toy_tasks.write_rows(tmp_path / "rows.jsonl", rows)
    words = ["--json", "--plugin", "my_triples.py"]
    found = stemma("finetune", "triple", "--model", "model", "--train", "rows.jsonl", "--dev", "rows.jsonl", "--out",
                   "run", "--steps", 4, *words, folder=tmp_path)
    assert found.code == 0, found.err
    card = json.loads((tmp_path / "run/model/tasks.json").read_text())["task"]
    assert card["more"] == ["start A separator B:1 separator:1 C:1 separator:1" if model == "bert@tiny" else
                            "A separator B:1 separator:1 C:2 separator:2 start:3"]
    said = stemma("predict", "run", "rows.jsonl", *words, folder=tmp_path).json["predictions"]
    assert said[0]["text_c"] == rows[0]["against"] and set(said[0]["scores"]) == {"good", "bad"}
