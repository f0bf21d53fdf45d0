"""Run a fine-tuning from its examples to its scores; resumable at any time from its folder alone.

The run folder holds the tokenizer and the examples (train.jsonl, dev.jsonl, test.jsonl); the predictions of the trained
model are added to the same files under `prediction`. `multitask` uses the same code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from stemma.network.network import POOLER, Network
from stemma.pretraining_record import PretrainingRecord
from stemma.recipe_loading import Recipe
from stemma.task_config import TaskConfig, registered_parts
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.objectives.base import TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.runs.baseline_scores import score_baselines
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.dev_score import dev_scorer, model_outputs
from stemma.tasks.runs.find_rate import find_rate
from stemma.tasks.runs.finetune_loader import FinetuneLoader, TaskDataset
from stemma.tasks.runs.finetune_spec import MULTITASK, HeadFinetuneSpec
from stemma.text.tokenizer import Tokenizer
from stemma.training.checkpoints import latest_checkpoint
from stemma.training.run_folder import MODEL, RESULT, RunConfig, read_run
from stemma.training.trainer import Trainer
from stemma.training.weight_transfer import transfer_weights

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class OpenFinetune:
    """An opened run: its examples, its model, and its trainer, ready to continue."""

    run_config: RunConfig
    spec: HeadFinetuneSpec
    recipe: Recipe
    task_configs: dict[str, TaskConfig]
    model: Model
    objectives: dict[str, TaskObjective]
    examples: dict[str, dict[str, list[Example]]]
    loader: FinetuneLoader
    trainer: Trainer


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Train, score and write the result; also called by `stemma resume`."""
    found = find_learning_rate(run)
    result = train_and_score(run, show) | ({"learning_rate_search": found} if found else {})
    write_object(run / RESULT, result)
    return result


def find_learning_rate(run: Path) -> dict[str, Any] | None:
    """Find the learning rate of a run, if it asks for that."""
    parts = registered_parts(HeadFinetuneSpec.from_run_config(read_run(run)[1]).parse_task_configs().values())
    return find_rate(run, lambda: open_finetune(run, False).trainer, parts)


def open_finetune(run: Path, show: bool) -> OpenFinetune:
    """Load everything that a run needs from its folder, and from the start model if it is new."""
    recipe, run_config = read_run(run)
    spec = HeadFinetuneSpec.from_run_config(run_config)
    tokenizer, task_configs = Tokenizer.load(run / TOKENIZER), spec.parse_task_configs()
    torch.manual_seed(run_config.seed)
    network = Network(recipe.settings.network, spec.vocabulary, task_head_specs(task_configs))
    if latest_checkpoint(run) is None:
        load_start_weights(run_config.start or "", network, task_configs, recipe.settings.training.fresh)
        network.start_inputs(tokenizer, network.state_dict())  # the task may add tokens
    record = None if spec.pretraining is None else PretrainingRecord.from_json(spec.pretraining)
    model = Model(recipe, tokenizer, network, task_configs=task_configs, pretraining=record)
    objectives = {name: build_task_objective(task_config, input_encoder_for(task_config, tokenizer), run_config.seed)
                  for name, task_config in task_configs.items()}
    examples = {name: {split: read_split(run, split, task_config) for split in SPLITS}
                for name, task_config in task_configs.items()}
    datasets = [task_dataset(objectives[name], examples[name], spec.batch_size) for name in task_configs]
    max_length = max(task_config.longest for task_config in task_configs.values())
    loader = FinetuneLoader(model, datasets, run_config.seed, max_length)
    trainer = Trainer(run, recipe, loader, network, run_config.budget, run_config.seed, run_config.tensorboard, show,
                      dev_scorer(model, task_configs, objectives, examples))
    return OpenFinetune(run_config, spec, recipe, task_configs, model, objectives, examples, loader, trainer)


def train_and_score(run: Path, show: bool) -> dict[str, Any]:
    """Train, score and save."""
    opened = open_finetune(run, show)
    spec, model, task_configs, objectives, examples, loader, trainer = (
        opened.spec, opened.model, opened.task_configs, opened.objectives, opened.examples, opened.loader,
        opened.trainer)
    num_examples = sum(len(dataset.train) for dataset in loader.datasets)
    if show:
        logger.info(f"{opened.recipe.label} · {model.network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{pluralize(num_examples, 'example')} · "
                    f"{str(trainer.precision).removeprefix('torch.')} on {pluralize(trainer.threads, 'core')}")
    result = {"run": str(run), "task": spec.kind, "model": opened.run_config.start, **trainer.train()}
    model.network.eval()
    metrics: dict[str, Any] = {}
    for name, task_config in task_configs.items():
        scores = score_splits(run, model, task_config, objectives[name], examples[name])
        for split, values in scores.items():
            if spec.kind == MULTITASK:
                metrics.setdefault(split, {"tasks": {}})["tasks"][name] = values
            else:
                metrics[split] = values
    with atomic_folder(run / MODEL, overwrite=True) as folder:
        write_model(model, folder)
    examples_seen = result["steps"] / loader.steps_in_epoch() * num_examples
    result |= {"metrics": metrics, "examples_per_second": examples_seen / max(result["seconds"], 1e-9)}
    if spec.baseline is not False:
        result |= score_baselines(task_configs, examples, metrics, multitask=spec.kind == MULTITASK)
    return result | ({"defaults": dict(spec.defaults)} if spec.defaults else {})


def task_head_specs(task_configs: Mapping[str, TaskConfig]) -> dict[str, Any]:
    return {name: spec for task_config in task_configs.values() for name, spec in task_config.heads.items()}


def input_encoder_for(task_config: TaskConfig, tokenizer: Tokenizer) -> InputEncoder:
    return InputEncoder(tokenizer, task_config.single, task_config.pair, task_config.longest, task_config.more,
                        keep_unknown=tokenizer.kind == "word")


def load_start_weights(start: str, network: Network, task_configs: Mapping[str, TaskConfig], fresh: int = 0) -> None:
    """Load the weights of the start model. Heads that it lacks or has for a different task are initialized at random,
    like the top `fresh` layers."""
    model = load(start)
    changed = [head for name, task_config in task_configs.items() for head in task_config.heads
               if head != POOLER and not _same_task(task_config, model.task_configs.get(name))]
    # embeddings of new tokens are initialized at random
    transferred = transfer_weights(model.network.state_dict(), network, reinit_layers=fresh, without_heads=changed,
                                   grow=True)
    heads = {name for group in network.parameter_groups() if group.name.startswith("head.")
             for name in group.parameters}
    if missing := sorted(set(transferred.missing_keys) - heads):
        raise UserError(f"{start} lacks weights of the network itself ({missing[0]}); it cannot be fine-tuned.")


def _same_task(task_config: TaskConfig, previous: TaskConfig | None) -> bool:
    """Whether a head that was trained for the `previous` task can be reused."""
    return previous is not None and (previous.kind, previous.labels, dict(previous.heads)) == (
        task_config.kind, task_config.labels, dict(task_config.heads))


def task_dataset(objective: TaskObjective, examples: Mapping[str, Sequence[Example]], batch_size: int) -> TaskDataset:
    return TaskDataset(objective, objective.encode_training(examples["train"]),
                       objective.encode_training(examples["dev"]), batch_size)


def score_splits(run: Path, model: Model, task_config: TaskConfig, objective: TaskObjective,
                 examples: Mapping[str, Sequence[Example]]) -> dict[str, dict[str, Any]]:
    """Metrics by split; writes the predictions next to their examples."""
    kind, metrics = head_task(task_config.kind), {}
    for split in ("dev", "test"):
        if not examples[split]:
            continue
        predictions = predict_examples(model, objective, examples[split])
        if split == "dev" and any(example.has_gold for example in examples[split]):
            options = kind.tune(task_config, examples[split], predictions)
            task_config = model.task_configs[task_config.name] = replace(task_config, values=options)
        predictions = kind.apply_options(task_config.values, predictions)
        write_jsonl(run / split_file(split, task_config),
                    predictions_to_json(task_config, examples[split], predictions))
        metrics[split] = compute_metrics(task_config, examples[split], predictions)
    return metrics


def predict_examples(model: Model, objective: TaskObjective, examples: Sequence[Example]) -> list[Any]:
    """A prediction for each example."""
    items = objective.encode(examples)
    return objective.postprocess(items, model_outputs(model, objective, items), examples)


# --- examples on disk -------------------------------------------------------------------------------------------------


def split_file(split: str, task_config: TaskConfig) -> str:
    return f"{split}.jsonl" if task_config.name == "task" else f"{split}-{task_config.name}.jsonl"


def example_to_json(task_config: TaskConfig, example: Example) -> dict[str, Any]:
    return head_task(task_config.kind).example_to_json(example)


def predictions_to_json(task_config: TaskConfig, examples: Sequence[Example],
                        predictions: Sequence[object]) -> list[dict[str, Any]]:
    """The stored form of examples with their predictions."""
    return [example_to_json(task_config, example) | {"prediction": prediction}
            for example, prediction in zip(examples, predictions, strict=True)]


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
