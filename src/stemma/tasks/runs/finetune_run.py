"""A fine-tune from its examples to its scores: one run, resumable at any moment, that needs nothing but its folder.

The examples are kept in the run (train.jsonl, dev.jsonl, test.jsonl), with the tokenizer; the answers of the finished
model go into the same files' `prediction`. Several tasks make one run the same way (`multitask`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stemma.atomic_files import atomic_folder
from stemma.checksummed_files import has_checksum, write_file, write_object
from stemma.checksummed_files import read_verified_lines as stored_lines
from stemma.errors import UserError, pluralize
from stemma.exchange.load import load
from stemma.exchange.save import write_model
from stemma.json_files import explain_damage
from stemma.model import Model
from stemma.network.network import Network
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.objectives.base import TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.dev_score import dev_scorer, model_outputs
from stemma.tasks.runs.finetune_loader import FinetuneLoader, TaskDataset
from stemma.tasks.runs.finetune_spec import MULTITASK, HeadFinetuneSpec
from stemma.text.tokenizer import Tokenizer
from stemma.training.checkpoints import latest_checkpoint
from stemma.training.run_folder import MODEL, RESULT, read_run
from stemma.training.trainer import Trainer
from stemma.training.weight_transfer import transfer_weights

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
TOKENIZER = "tokenizer"


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """A run from its first step to its last line; what `stemma resume` calls, too."""
    result = train_and_score(run, show)
    write_object(run / RESULT, result)
    return result


def train_and_score(run: Path, show: bool) -> dict[str, Any]:
    """Train, score and save."""
    wanted, plan = read_run(run)
    facts = HeadFinetuneSpec.from_run_config(plan)
    tokenizer, cards = Tokenizer.load(run / TOKENIZER), facts.parse_task_configs()
    torch.manual_seed(plan.seed)
    network = Network(wanted.settings.network, facts.vocabulary, task_head_specs(cards))
    if latest_checkpoint(run) is None:
        load_start_weights(plan.start or "", network, cards, wanted.settings.training.fresh)
        network.start_inputs(tokenizer, network.state_dict())  # the task may have brought tokens of its own
    model = Model(wanted, tokenizer, network, task_configs=cards)
    learners = {name: build_task_objective(card, input_encoder_for(card, tokenizer), plan.seed) for name,
                card in cards.items()}
    examples = {name: {part: read_split(run, part, card) for part in SPLITS} for name, card in cards.items()}
    lessons = [task_dataset(learners[name], examples[name], facts.batch_size) for name, card in cards.items()]
    supply = FinetuneLoader(model, lessons, plan.seed, max(card.longest for card in cards.values()))
    loop = Trainer(run, wanted, supply, network, plan.budget, plan.seed, plan.tensorboard, show,
                dev_scorer(model, cards, learners, examples))
    if show:
        logger.info(f"{wanted.label} · {network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{pluralize(sum(len(lesson.train) for lesson in lessons), 'example')} · "
                    f"{str(loop.precision).removeprefix('torch.')} on {pluralize(loop.threads, 'core')}")
    result = {"run": str(run), "task": facts.kind, "model": plan.start, **loop.train()}
    network.eval()
    metrics: dict[str, Any] = {}
    for name, card in cards.items():
        found = score_splits(run, model, card, learners[name], examples[name])
        for part, values in found.items():
            if facts.kind == MULTITASK:
                metrics.setdefault(part, {"tasks": {}})["tasks"][name] = values
            else:
                metrics[part] = values
    with atomic_folder(run / MODEL, overwrite=True) as place:
        write_model(model, place)
    seen = result["steps"] / supply.steps_in_epoch() * sum(len(lesson.train) for lesson in lessons)
    result |= {"metrics": metrics, "examples_per_second": seen / max(result["seconds"], 1e-9)}
    return result


def task_head_specs(task_configs: Mapping[str, TaskConfig]) -> dict[str, Any]:
    return {name: spec for card in task_configs.values() for name, spec in card.heads.items()}


def input_encoder_for(task_config: TaskConfig, tokenizer: Tokenizer) -> InputEncoder:
    return InputEncoder(tokenizer, task_config.single, task_config.pair, task_config.longest, task_config.more)


def load_start_weights(start: str, network: Network, task_configs: Mapping[str, TaskConfig], fresh: int = 0) -> None:
    """Fill the network with a model's weights. Heads that it does not have start at random, and so do those that it has
    for another task of this name, and the `fresh` highest layers."""
    model = load(start)
    other = [name for name, card in task_configs.items() if not _same_task(card, model.task_configs.get(name))]
    # tokens that are new with the task start at random
    found = transfer_weights(model.network.state_dict(), network, reinit_layers=fresh, without_heads=other, grow=True)
    heads = {name for group in network.parameter_groups() if group.name.startswith("head.")
             for name in group.parameters}
    if bodily := sorted(set(found.missing_keys) - heads):
        raise UserError(f"{start} lacks weights of the network itself ({bodily[0]}); it cannot be fine-tuned.")


def _same_task(task_config: TaskConfig, before: TaskConfig | None) -> bool:
    """Whether a model that answered `before` has learnt to answer this."""
    return before is not None and (before.kind, before.labels, dict(before.heads)) == (task_config.kind,
                                                                                       task_config.labels,
                                                                                       dict(task_config.heads))


def task_dataset(objective: TaskObjective, examples: Mapping[str, Sequence[Example]], batch_size: int) -> TaskDataset:
    return TaskDataset(objective, objective.encode_training(examples["train"]),
                       objective.encode_training(examples["dev"]), batch_size)


def score_splits(run: Path, model: Model, task_config: TaskConfig, objective: TaskObjective,
           examples: Mapping[str, Sequence[Example]]) -> dict[str, dict[str, Any]]:
    """Metrics by set; the predictions go beside their examples."""
    kind, found = head_task(task_config.kind), {}
    for part in ("dev", "test"):
        if not examples[part]:
            continue
        predictions = predict_examples(model, objective, examples[part])
        if part == "dev" and any(example.has_gold for example in examples[part]):
            task_config = model.task_configs[task_config.name] = replace(task_config,
                values=kind.tune(task_config, examples[part], predictions))
        predictions = kind.apply_options(task_config.values, predictions)
        write_jsonl(run / split_file(part, task_config), predictions_to_json(task_config, examples[part], predictions))
        found[part] = compute_metrics(task_config, examples[part], predictions)
    return found


def predict_examples(model: Model, objective: TaskObjective, examples: Sequence[Example]) -> list[Any]:
    """What the model says of each example."""
    items = objective.encode(examples)
    return objective.postprocess(items, model_outputs(model, objective, items), examples)


# --- examples on disk -------------------------------------------------------------------------------------------------


def split_file(split: str, task_config: TaskConfig) -> str:
    return f"{split}.jsonl" if task_config.name == "task" else f"{split}-{task_config.name}.jsonl"


def example_to_json(task_config: TaskConfig, example: Example) -> dict[str, Any]:
    return head_task(task_config.kind).example_to_json(example)


def predictions_to_json(task_config: TaskConfig, examples: Sequence[Example],
                        predictions: Sequence[object]) -> list[dict[str, Any]]:
    """Examples as they are stored, each with what was predicted."""
    return [example_to_json(task_config, example) | {"prediction": said}
            for example, said in zip(examples, predictions, strict=True)]


def write_jsonl(file: Path, lines: Sequence[dict[str, object]]) -> None:
    write_file(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_split(run: Path, split: str, task_config: TaskConfig) -> list[Example]:
    file = run / split_file(split, task_config)
    advice = "bring it back, or start the fine-tune again in another folder."
    if split != "train" and not file.is_file() and not has_checksum(file):
        return []
    kind = head_task(task_config.kind)
    with explain_damage(file, advice):
        return [kind.example_from_json(line) for line in stored_lines(file, advice)]
