"""The report of a run with several objectives plots the loss of each, from its first step."""

import json
from xml.etree import ElementTree

from stemma.lab.report.plots import small_curves
from stemma.lab.report.run_html import objective_losses, write_report
from stemma.training.pretrain import pretrain

SMALL = ["network.width=32", "network.heads=2", "network.feedforward=64", "corpus.sequence_length=32",
         "training.batch_size=8", "training.warmup_steps=2", "training.log_every=1", "training.validate_every=4"]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]


def test_a_run_of_several_objectives_has_a_small_plot_for_each(tmp_path, corpus_folder):
    run = tmp_path / "run"
    pretrain("bert@tiny", corpus_folder, run, steps=16,
             changes=[*SMALL, "objective.next_sentence.start_step=6", "objective.next_sentence.task_id=1",
                      "network.embedding.tasks=2"])
    losses = objective_losses(run)
    assert losses.keys() == {"masked_lm", "next_sentence"}
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for task in losses:
        for key, name in (("losses", "training"), ("validation_losses", "held-out")):
            assert losses[task][name] == [(entry["tokens"] / 1e6, entry[key][task]) for entry in entries
                                         if task in entry.get(key, {})]
    first_tokens = next(entry["tokens"] for entry in entries if entry["step"] == 7) / 1e6
    assert losses["next_sentence"]["training"][0][0] >= first_tokens > losses["masked_lm"]["training"][0][0]
    assert losses["next_sentence"]["held-out"][0][0] >= first_tokens
    page = write_report(run).read_text()
    assert page.count("<svg") == 2
    labels = texts("<svg" + page.split("<svg")[2].partition("</svg>")[0] + "</svg>")
    assert {"masked_lm", "next_sentence"} <= {text.strip() for text in labels}


def test_a_run_of_one_objective_has_no_small_plots(tmp_path, corpus_folder):
    run = tmp_path / "run"
    pretrain("gpt@tiny", corpus_folder, run, steps=3, changes=SMALL)
    assert objective_losses(run) == {} and write_report(run).read_text().count("<svg") == 1


def test_small_curves_show_all_names_and_single_points_and_are_deterministic():
    panels = {f"task {index}": ({"held-out": [(0.0, 2.0), (1.0, 1.0)], "training": [(0.5, 1.5)]},
                                 1.2 if index else None) for index in range(5)}
    svg = small_curves(panels, "tokens", "loss")
    assert {f"task {index}" for index in range(5)} | {"tokens", "loss"} <= set(texts(svg))
    assert svg == small_curves(panels, "tokens", "loss")
    assert small_curves({"only": ({"held-out": [(0.0, 1.0)]}, None)}, "tokens", "loss").startswith("<svg")
