"""A whole fine-tune gives the weights that `transformers`' class reaches in a loop written by hand: the same batches
with filling, everything computed everywhere, torch's AdamW and clipping."""

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


def beginning(run: Path, folder: Path) -> tuple[Model, FinetuneLoader]:
    """The model as it was before the first step, also as a folder, and the batches that it will see."""
    wanted, plan = read_run(run)
    card = TaskConfig.from_json(plan.task["cards"]["task"])
    torch.manual_seed(SEED)
    network = Network(wanted.settings.network, plan.task["vocabulary"], task_head_specs({"task": card}))
    load_start_weights(plan.start, network, {"task": card})
    model = Model(wanted, stemma.load(plan.start).tokenizer, network.eval(), task_configs={"task": card})
    save(model, folder)
    learner = build_task_objective(card, input_encoder_for(card, model.require_tokenizer()), SEED)
    examples = {part: read_split(run, part, card) for part in ("train", "dev")}
    return model, FinetuneLoader(model, [task_dataset(learner, examples, plan.task["batch_size"])], SEED, card.longest)


def given(kind: str, items: list[Any]) -> dict[str, torch.Tensor]:
    """A batch as the class over there takes it."""
    rows = [row for item in items for row in item.sequences]
    longest = max(len(row.input_ids) for row in rows)

    def filled(values: list[Any]) -> torch.Tensor:
        return torch.tensor([[*map(int, one), *[0] * (longest - len(one))] for one in values])

    made = {"input_ids": filled([row.input_ids for row in rows]),
            "token_type_ids": filled([row.segment_ids for row in rows]),
            "attention_mask": filled([[1] * len(row.input_ids) for row in rows])}
    if kind == "tag":
        labels = torch.full((len(rows), longest), -100)
        for number, item in enumerate(items):
            labels[number, item.decode_info[0]] = torch.from_numpy(item.target)
        return {**made, "labels": labels}
    if kind == "qa":
        ends = torch.tensor([item.target for item in items])
        return {**made, "start_positions": ends[:, 0], "end_positions": ends[:, 1]}
    if kind == "choice":
        made = {name: value.view(len(items), -1, longest) for name, value in made.items()}
    return {**made, "labels": torch.tensor([item.target for item in items])}


def loss_of(theirs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Over there, filling competes with the text for where an answer is; here it does not."""
    told = theirs(**batch)
    if "start_positions" not in batch:
        return told.loss
    filling = batch["attention_mask"] == 0
    return sum(torch.nn.functional.cross_entropy(told[f"{end}_logits"].masked_fill(filling, -1e9),
                                                 batch[f"{end}_positions"]) for end in ("start", "end")) / 2


def without_dropout(*arguments: Any, rate: float = 0.0) -> dict[str, Any]:
    """The heads of a task, which otherwise have some of their own."""
    return {name: replace(spec, dropout=rate) if hasattr(spec, "dropout") else spec
            for name, spec in default_task_heads(*arguments).items()}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_weights_are_those_of_a_plain_loop(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("stemma.tasks.runs.finetune.default_task_heads", without_dropout)
    start = toy_tasks.save_model(tmp_path / "start")
    sets = toy_tasks.write_sets(tmp_path, kind, 20, 8)
    finetune(TaskArguments(kind, sets), start, tmp_path / "run", steps=STEPS, seed=SEED, changes=CHANGES)
    model, supply = beginning(tmp_path / "run", tmp_path / "beginning")
    rates = [line["learning_rate"] for line in map(json.loads, (tmp_path / "run" / "log.jsonl").open())
             if "learning_rate" in line]
    assert len(rates) == STEPS and len(set(rates)) > 3

    theirs = getattr(transformers, f"AutoModelFor{CLASSES[kind]}").from_pretrained(tmp_path / "beginning")
    theirs.train()
    matrices, vectors = ([p for p in theirs.parameters() if (p.ndim >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for step, rate in enumerate(rates):
        order = supply._batch_order(step // supply.steps_in_epoch())
        _, numbers = order[step % supply.steps_in_epoch()]
        loss = loss_of(theirs, given(kind, [supply.datasets[0].train[number] for number in numbers]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()

    ours = getattr(transformers, type(theirs).__name__).from_pretrained(tmp_path / "run" / "model").state_dict()
    before = model.network.state_dict()["embedding.tokens.weight"]
    assert (ours["bert.embeddings.word_embeddings.weight"] - before).abs().max() > 1e-3  # something was learnt
    for name, tensor in theirs.state_dict().items():
        if (kind, name) in (("choice", "classifier.bias"), ("qa", "qa_outputs.bias")):
            continue  # it moves all options, or all positions, alike, so its gradient is rounding
        assert torch.allclose(ours[name], tensor, atol=3e-5, rtol=1e-3), (name, (ours[name] - tensor).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_dropout_moves_the_loss_and_the_gradient_as_it_does_over_there(tmp_path, kind, monkeypatch):
    """One batch with padding, many draws on either side: mean and variance of the loss and of the gradient's norm
    differ by no more than 4 standard errors."""
    rate, draws = 0.3, 400
    monkeypatch.setattr("stemma.tasks.runs.finetune.default_task_heads",
                        lambda *arguments: without_dropout(*arguments, rate=rate))
    sets = toy_tasks.write_sets(tmp_path, kind, 40, 8)
    finetune(TaskArguments(kind, sets), toy_tasks.save_model(tmp_path / "start"), tmp_path / "run", steps=1, seed=SEED,
             changes=[
        f"network.dropout={rate}", f"network.attention.dropout={rate}", "training.batch_size=32",
        "training.precision=fp32"])
    model, supply = beginning(tmp_path / "run", tmp_path / "beginning")
    (lesson,) = supply.datasets
    items = lesson.train[:32]
    theirs = getattr(transformers, f"AutoModelFor{CLASSES[kind]}").from_pretrained(
        tmp_path / "beginning", hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, classifier_dropout=rate)
    batch = given(kind, items)
    assert batch["attention_mask"].float().mean() < 0.8
    passes = ForwardBackward(model.network.train(), [lesson.objective], SimpleNamespace(micro_batch_size=None),
                    torch.device("cpu"), torch.float32)
    prepared = PreparedBatch((lesson.objective,), lesson.objective.collate(model, items), {}, "")
    theirs.train()

    def ours() -> float:
        return passes.forward_backward(prepared).total

    def others() -> float:
        loss = loss_of(theirs, batch)
        loss.backward()
        return loss.item()

    found = []
    for network, step in ((model.network, ours), (theirs, others)):
        torch.manual_seed(1)
        seen = []
        for _ in range(draws):
            network.zero_grad(set_to_none=True)
            loss = step()
            norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
            seen.append((loss, float(norm)))
        found.append(np.array(seen))
    for a, b in zip(found[0].T, found[1].T, strict=True):
        assert abs(a.mean() - b.mean()) < 4 * math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / draws)
        assert a.std() > 0.01 * a.mean()
        # of a normal variable the logarithm of a variance from n draws has a standard error of sqrt(2 / n)
        assert abs(math.log(a.var(ddof=1) / b.var(ddof=1))) < 4 * math.sqrt(4 / draws) * 1.5
