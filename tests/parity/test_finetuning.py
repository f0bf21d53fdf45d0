"""Fine-tuning gives the weights of a plain training loop around the class of `transformers`: the same padded batches,
torch's AdamW and clipping."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import toy_tasks
import transformers

import stemma
from stemma.exchange.default_heads import default_task_heads
from stemma.exchange.save import save
from stemma.model import Model
from stemma.network.network import Network
from stemma.task_config import TaskConfig
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_loader import FinetuneLoader
from stemma.tasks.runs.finetune_run import (
    input_encoder_for,
    load_start_weights,
    read_split,
    task_dataset,
    task_head_specs,
)
from stemma.training.forward_backward import ForwardBackward
from stemma.training.loader import PreparedBatch
from stemma.training.run_folder import read_run

STEPS, SEED = 6, 3
CLASSES = {"classify": "SequenceClassification", "regress": "SequenceClassification", "tag": "TokenClassification",
           "qa": "QuestionAnswering", "choice": "MultipleChoice"}
CHANGES = ["network.dropout=0.0", "network.attention.dropout=0.0", "training.batch_size=8", "training.log_every=1",
           "training.learning_rate=2e-3", "training.precision=fp32"]


def before_first_step(run: Path, folder: Path) -> tuple[Model, FinetuneLoader]:
    """The model as it was before the first step, also saved to `folder`, and the loader of its batches."""
    run_recipe, plan = read_run(run)
    task_config = TaskConfig.from_json(plan.task["cards"]["task"])
    torch.manual_seed(SEED)
    network = Network(run_recipe.settings.network, plan.task["vocabulary"], task_head_specs({"task": task_config}))
    load_start_weights(plan.start, network, {"task": task_config})
    model = Model(run_recipe, stemma.load(plan.start).tokenizer, network.eval(), task_configs={"task": task_config})
    save(model, folder)
    objective = build_task_objective(task_config, input_encoder_for(task_config, model.require_tokenizer()), SEED)
    examples = {part: read_split(run, part, task_config) for part in ("train", "dev")}
    dataset = task_dataset(objective, examples, plan.task["batch_size"])
    return model, FinetuneLoader(model, [dataset], SEED, task_config.longest)


def hf_batch(kind: str, items: list[Any]) -> dict[str, torch.Tensor]:
    """A batch as the class of transformers takes it."""
    rows = [row for item in items for row in item.sequences]
    longest = max(len(row.input_ids) for row in rows)

    def padded(values: list[Any]) -> torch.Tensor:
        return torch.tensor([[*map(int, row), *[0] * (longest - len(row))] for row in values])

    inputs = {"input_ids": padded([row.input_ids for row in rows]),
              "token_type_ids": padded([row.segment_ids for row in rows]),
              "attention_mask": padded([[1] * len(row.input_ids) for row in rows])}
    if kind == "tag":
        labels = torch.full((len(rows), longest), -100)
        for index, item in enumerate(items):
            labels[index, item.decode_info[0]] = torch.from_numpy(item.target)
        return {**inputs, "labels": labels}
    if kind == "qa":
        ends = torch.tensor([item.target for item in items])
        return {**inputs, "start_positions": ends[:, 0], "end_positions": ends[:, 1]}
    if kind == "choice":
        inputs = {name: value.view(len(items), -1, longest) for name, value in inputs.items()}
    return {**inputs, "labels": torch.tensor([item.target for item in items])}


def loss_of(hf_model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of transformers, but without padding among the candidates for an answer's start and end."""
    outputs = hf_model(**batch)
    if "start_positions" not in batch:
        return outputs.loss
    padding = batch["attention_mask"] == 0
    return sum(torch.nn.functional.cross_entropy(outputs[f"{end}_logits"].masked_fill(padding, -1e9),
                                                 batch[f"{end}_positions"]) for end in ("start", "end")) / 2


def without_dropout(*arguments: Any, rate: float = 0.0) -> dict[str, Any]:
    """The default heads of a task, with this dropout rate."""
    return {name: replace(spec, dropout=rate) if hasattr(spec, "dropout") else spec
            for name, spec in default_task_heads(*arguments).items()}


@pytest.mark.parametrize("kind", CLASSES)
def test_finetuned_weights_are_those_of_a_plain_loop(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("stemma.tasks.runs.finetune.default_task_heads", without_dropout)
    start = toy_tasks.save_model(tmp_path / "start")
    sets = toy_tasks.write_sets(tmp_path, kind, 20, 8)
    finetune(TaskArguments(kind, sets), start, tmp_path / "run", steps=STEPS, seed=SEED, changes=CHANGES)
    model, loader = before_first_step(tmp_path / "run", tmp_path / "beginning")
    rates = [line["learning_rate"] for line in map(json.loads, (tmp_path / "run" / "log.jsonl").open())
             if "learning_rate" in line]
    assert len(rates) == STEPS and len(set(rates)) > 3

    hf_model = getattr(transformers, f"AutoModelFor{CLASSES[kind]}").from_pretrained(tmp_path / "beginning")
    hf_model.train()
    matrices, vectors = ([p for p in hf_model.parameters() if (p.ndim >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for step, rate in enumerate(rates):
        order = loader._batch_order(step // loader.steps_in_epoch())
        _, indices = order[step % loader.steps_in_epoch()]
        loss = loss_of(hf_model, hf_batch(kind, [loader.datasets[0].train[index] for index in indices]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf_model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()

    weights = getattr(transformers, type(hf_model).__name__).from_pretrained(tmp_path / "run" / "model").state_dict()
    before = model.network.state_dict()["embedding.tokens.weight"]
    assert (weights["bert.embeddings.word_embeddings.weight"] - before).abs().max() > 1e-3  # the weights have changed
    for name, tensor in hf_model.state_dict().items():
        if (kind, name) in (("choice", "classifier.bias"), ("qa", "qa_outputs.bias")):
            continue  # it shifts all options, or all positions, alike: its gradient is rounding error
        assert torch.allclose(weights[name], tensor, atol=3e-5, rtol=1e-3), (name, (weights[name] - tensor).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_dropout_affects_loss_and_gradient_as_in_transformers(tmp_path, kind, monkeypatch):
    """One batch with padding, many draws on either side: mean and variance of the loss and of the gradient's norm
    differ by no more than 4 standard errors."""
    rate, draws = 0.3, 400
    monkeypatch.setattr("stemma.tasks.runs.finetune.default_task_heads",
                        lambda *arguments: without_dropout(*arguments, rate=rate))
    sets = toy_tasks.write_sets(tmp_path, kind, 40, 8)
    finetune(TaskArguments(kind, sets), toy_tasks.save_model(tmp_path / "start"), tmp_path / "run", steps=1, seed=SEED,
             changes=[f"network.dropout={rate}", f"network.attention.dropout={rate}", "training.batch_size=32",
                      "training.precision=fp32"])
    model, loader = before_first_step(tmp_path / "run", tmp_path / "beginning")
    (dataset,) = loader.datasets
    items = dataset.train[:32]
    hf_model = getattr(transformers, f"AutoModelFor{CLASSES[kind]}").from_pretrained(
        tmp_path / "beginning", hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, classifier_dropout=rate)
    batch = hf_batch(kind, items)
    assert batch["attention_mask"].float().mean() < 0.8
    forward_backward = ForwardBackward(model.network.train(), [dataset.objective],
                                       SimpleNamespace(micro_batch_size=None), torch.device("cpu"), torch.float32)
    prepared = PreparedBatch((dataset.objective,), dataset.objective.collate(model, items), {}, "")
    hf_model.train()

    def stemma_step() -> float:
        return forward_backward.forward_backward(prepared).total

    def hf_step() -> float:
        loss = loss_of(hf_model, batch)
        loss.backward()
        return loss.item()

    samples = []
    for network, step in ((model.network, stemma_step), (hf_model, hf_step)):
        torch.manual_seed(1)
        losses_norms = []
        for _ in range(draws):
            network.zero_grad(set_to_none=True)
            loss = step()
            norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
            losses_norms.append((loss, float(norm)))
        samples.append(np.array(losses_norms))
    for a, b in zip(samples[0].T, samples[1].T, strict=True):
        assert abs(a.mean() - b.mean()) < 4 * math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / draws)
        assert a.std() > 0.01 * a.mean()
        # the log variance of n draws of a normal variable has a standard error of sqrt(2 / n)
        assert abs(math.log(a.var(ddof=1) / b.var(ddof=1))) < 4 * math.sqrt(4 / draws) * 1.5
