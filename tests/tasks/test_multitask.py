"""Multi-task fine-tuning: one encoder with a head per task; then each task separately."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from conftest import SEED
from toy_tasks import FAST, MAKERS, save_model, write_rows, write_sets

from stemma.corpus.seq2seq_rows import ENCODER
from stemma.errors import UserError
from stemma.exchange.load import load
from stemma.lab.report.run_html import run_command
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.network.san_head import SanHead
from stemma.recipe_loading import recipe
from stemma.tasks.data.examples import TextExample
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.objectives.san_pair import SanPairObjective, text_spans
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_run import predict_examples, read_split
from stemma.tasks.runs.multitask import multitask
from stemma.training.run_folder import read_run


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    save_model(folder / "bert")
    for kind in MAKERS:
        write_sets(folder, kind)
    return folder


def plan_of(folder: Path, tasks: Mapping[str, str], top: str = "", **more: str) -> Path:
    """A plan of tasks by name and kind; `more` are lines of one of them."""
    tables = [f'[tasks.{name}]\nkind = "{kind}"\ntrain = "{kind}-train.jsonl"\ndev = "{kind}-dev.jsonl"\n'
              f"{more.get(name, '')}\n" for name, kind in tasks.items()]
    file = folder / f"{'-'.join(tasks)}{len(list(folder.glob('*.toml')))}.toml"
    file.write_text(top + "\n" + "\n".join(tables))
    return file


def test_every_task_kind_in_one_model(toy, tmp_path):
    tasks = {"one": "classify", "two": "pair", "san": "pair", "number": "regress", "option": "choice", "where": "qa",
             "who": "tag", "best": "rank"}
    result = multitask(plan_of(toy, tasks, san='head = "san"'), toy / "bert", tmp_path / "run", epochs=1)
    assert set(result["metrics"]["dev"]["tasks"]) == set(tasks) == set(result["validation_losses"])
    assert result["task"] == "multitask" and "finetuned" not in result
    linear = result["baseline"]["linear"]  # not of choice, qa, tag, rank
    assert set(linear["dev"]["tasks"]) == set(linear["fit"]["tasks"]) == {"one", "two", "san", "number"}
    assert linear["dev"]["tasks"]["one"].keys() == result["metrics"]["dev"]["tasks"]["one"].keys()

    model = load(tmp_path / "run")
    assert {name: config.kind for name, config in model.task_configs.items()} == tasks
    assert model.network.head_specs["san"] == SanHead(2)
    for name, config in model.task_configs.items():
        held = read_split(tmp_path / "run", "dev", config)
        encoder = InputEncoder(model.tokenizer, config.single, config.pair, config.longest)
        learner = build_task_objective(config, encoder)
        lines = (tmp_path / "run" / f"dev-{name}.jsonl").read_text().splitlines()
        for said, line in zip(predict_examples(model, learner, held), lines, strict=True):
            assert said.keys() == json.loads(line)["prediction"].keys()
            for key in said.keys() & {"label", "tags", "answer"}:
                assert said[key] == json.loads(line)["prediction"][key]


def test_batches_of_both_tasks_are_shuffled_with_adamax(toy, tmp_path):
    plan = plan_of(toy, {"first": "classify", "second": "pair"}, "epochs = 16", second='head = "san"')
    result = multitask(plan, toy / "bert", tmp_path / "run", seed=SEED,
                       changes=["training.learning_rate=2e-2", "training.batch_size=16", "training.log_every=1"])
    scores = result["metrics"]["dev"]["tasks"]
    assert min(scores["first"]["accuracy"], scores["second"]["accuracy"]) > 0.8

    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    order = [next(iter(entry["losses"])) for entry in log if "losses" in entry]
    assert len(order) == result["steps"] == 16 * (6 + 6) and order.count("first") == 16 * 6
    turns = sum(a != b for a, b in zip(order, order[1:], strict=False))
    assert turns > len(order) / 3  # shuffled, not one after the other
    ran = recipe(tmp_path / "run" / "recipe.toml")
    assert ran.settings.training.optimizer.kind == "adamax" and ran.origin["training.optimizer.kind"] == "fine-tuning"


def test_the_plan_sets_values_and_the_command_line_overrides_them(toy, tmp_path):
    top = "epochs = 2\n[training]\nlearning_rate = 1e-4\nbatch_size = 48\nwarmup_steps = 1"
    plan = plan_of(toy, {"first": "classify"}, top)
    result = multitask(plan, toy / "bert", tmp_path / "run", steps=3, changes=["training.learning_rate=2e-4"])
    ran = recipe(tmp_path / "run" / "recipe.toml")
    training = ran.settings.training
    assert (result["steps"], training.learning_rate, training.batch_size, training.warmup_steps) == (3, 2e-4, 48, 1)
    assert ran.origin["training.batch_size"] == plan.name and training.validate_every == 2  # an epoch of 96 examples
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]  # a task alone is what others can open


def test_separate_runs_start_from_the_shared_weights_and_the_trained_head(toy, tmp_path):
    plan = plan_of(toy, {"first": "classify", "second": "pair"}, "finetune = true", second='head = "san"')
    still = ["training.learning_rate=1e-12"]  # so that where it began is where it ends
    result = multitask(plan, toy / "bert", tmp_path / "run", steps=2, changes=still, baseline=False)
    assert "baseline" not in result and "--no-baseline" in run_command(*read_run(tmp_path / "run"), tmp_path / "run")
    shared = load(tmp_path / "run").network.state_dict()
    before = load(toy / "bert").network.state_dict()
    for name in ("first", "second"):
        alone = load(tmp_path / "run" / "tasks" / name)
        assert list(alone.task_configs) == [name]
        weights = alone.network.state_dict()
        assert any(key.startswith(f"heads.{name}.") for key in weights)
        for key, weight in weights.items():
            torch.testing.assert_close(weight, shared[key], atol=1e-6, rtol=0)
            if key in before and not key.startswith("heads."):
                torch.testing.assert_close(weight, before[key], atol=1e-6, rtol=0)
        assert result["finetuned"][name]["metrics"]["dev"] == result["metrics"]["dev"]["tasks"][name]
        assert result["finetuned"][name]["steps"] == 2


def test_a_separate_run_changes_only_its_own_model(toy, tmp_path):
    plan = plan_of(toy, {"first": "classify", "second": "pair"}, "finetune = true")
    multitask(plan, toy / "bert", tmp_path / "run", steps=4, changes=FAST)
    multitask(plan_of(toy, {"first": "classify", "second": "pair"}), toy / "bert", tmp_path / "other", steps=4,
              changes=FAST)
    shared, same = (load(tmp_path / name).network.state_dict() for name in ("run", "other"))
    assert all(torch.equal(weight, same[key]) for key, weight in shared.items())
    alone = load(tmp_path / "run" / "tasks" / "first").network.state_dict()
    assert not any(torch.equal(alone[key], shared[key]) for key in alone if key.endswith("output.weight"))


def test_top_layers_are_reinitialized_once(toy, tmp_path):
    tasks = {"first": "classify", "second": "pair"}
    plan = plan_of(toy, tasks, "finetune = true\n[training]\nfresh = 1\nlearning_rate = 1e-12")
    multitask(plan, toy / "bert", tmp_path / "run", steps=1, seed=1)  # the model itself was drawn by seed 0
    shared, alone = (load(tmp_path / name).network.state_dict() for name in ("run", "run/tasks/first"))
    begun = load(toy / "bert").network.state_dict()
    top = "encoder.blocks.1."
    assert any(key.startswith(top) and not torch.allclose(shared[key], begun[key], atol=1e-3) for key in begun)
    assert all(torch.allclose(alone[key], shared[key], atol=1e-6) for key in alone)


def test_problems_of_several_tasks_are_reported_together(toy, tmp_path):
    write_rows(toy / "rank-bad.jsonl", [{"text_a": "x", "text_b": "y", "label": "perhaps"}])
    plan = plan_of(toy, {"first": "classify", "second": "pair", "third": "rank"})
    text = plan.read_text().replace('train = "rank-train.jsonl"', 'train = "rank-bad.jsonl"')
    plan.write_text(text.replace('train = "pair-train.jsonl"', 'train = "classify-train.jsonl"'))
    with pytest.raises(UserError) as caught:
        multitask(plan, toy / "bert", tmp_path / "run")
    message = str(caught.value)
    assert "tasks.second" in message and "text_a" in message and "tasks.third" in message and "perhaps" in message
    assert "tasks.first" not in message and not (tmp_path / "run").exists()


# --- the head that reads two texts apart ------------------------------------------------------------------------------


@pytest.fixture
def pair(toy, tmp_path) -> tuple[SanPairObjective, Network, list]:
    """A task objective with a SAN head, its network and encoded examples, without dropout."""
    multitask(plan_of(toy, {"san": "pair"}, san='head = "san"\nweight = 3.0\ndropout = 0.0\nsteps = 2'), toy / "bert",
              tmp_path / "run", steps=1)
    model = load(tmp_path / "run")
    config = model.task_configs["san"]
    assert model.network.head_specs["san"] == SanHead(2, steps=2, dropout=0.0)
    learner = build_task_objective(config, InputEncoder(model.tokenizer, config.single, config.pair, config.longest))
    assert isinstance(learner, SanPairObjective) and learner.weight == 3.0
    return learner, model, learner.encode(read_split(tmp_path / "run", "dev", config)[:6])


def test_a_batch_in_slices_has_the_loss_of_the_whole(pair):
    learner, model, items = pair
    full_batch = learner.collate(model, items)

    def loss(batch) -> torch.Tensor:
        return learner.loss(model.network, model.network(batch.streams), batch)["san"]

    parts = [loss(batch) for batch in full_batch.slices(2)]
    assert len(parts) == 3
    torch.testing.assert_close(sum(parts), loss(full_batch), atol=1e-6, rtol=1e-5)


@torch.inference_mode()
def test_the_san_head_reads_the_spans_of_both_texts(pair):
    learner, model, items = pair
    batch = learner.collate(model, items[:1])
    row = items[0].sequences[0]
    (a, n), (b, m) = row.text_spans
    assert text_spans(row) == (a, n, b, m) and row.input_ids[a - 1] == model.tokenizer.special_id("start")
    assert row.input_ids[a + n] == row.input_ids[b - 1] == row.input_ids[b
                                                                         + m] == model.tokenizer.special_id("separator")
    hidden = model.network(batch.streams)
    before = learner.outputs(model.network, hidden, batch)
    changed = hidden[ENCODER].clone()
    changed[0, [0, a + n, b + m]] = 7.0  # nobody looks at the special tokens
    after = learner.outputs(model.network, replace(hidden, last_hidden_states={ENCODER: changed}), batch)
    assert isinstance(hidden, NetworkOutput)
    assert_close(before[0], after[0])


@torch.inference_mode()
def test_an_empty_text_still_has_a_prediction(pair):
    learner, model, _ = pair
    items = learner.encode([TextExample("x", ("\u200b", "the printer reads"), "yes"),
                           TextExample("y", ("the printer reads", "\x07"), "no")])
    assert [item.sequences[0].text_spans[number][1] for number, item in enumerate(items)] == [0, 0]
    batch = learner.collate(model, items)
    answers = learner.outputs(model.network, model.network(batch.streams), batch)
    assert all(torch.isfinite(torch.from_numpy(scores)).all() for scores in answers)
