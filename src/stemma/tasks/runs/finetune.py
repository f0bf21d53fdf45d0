"""Start a fine-tuning run: read and check the examples, build the task config, and write the run folder.

All errors in data and settings are reported here, before training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stemma.atomic_files import atomic_folder, check_output_path, write_checksums
from stemma.checksummed_files import write_file
from stemma.corpus.seq2seq_rows import ENCODER
from stemma.device import accepts_device
from stemma.errors import UserError
from stemma.exchange.default_heads import default_stack, default_task_heads, with_pooling
from stemma.exchange.input_templates import input_templates
from stemma.exchange.load import open_model
from stemma.exchange.save import save
from stemma.model import Model
from stemma.network.heads import HeadSpec
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import extend_template
from stemma.schema.network import NetworkSettings
from stemma.schema.overrides import flatten, parse_changes
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig, registered_parts, task_stack
from stemma.tasks.data.checks import check_labelled, check_labels
from stemma.tasks.data.examples import Example, duplicate_fraction, label_counts, labels_of
from stemma.tasks.datasets import DATASETS, read_examples, task_kind_of
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import check_metrics
from stemma.tasks.objectives.crf_tagging import with_crf
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.class_weights import class_weights
from stemma.tasks.runs.common import (
    ORIGIN,
    TrainingLength,
    check_start_and_out,
    finetune_overrides,
    layer_decay_overrides,
    with_finetuning_choices,
)
from stemma.tasks.runs.compute_metrics import check_metrics_apply
from stemma.tasks.runs.feature_extraction import FROZEN_RECIPE as FEATURES
from stemma.tasks.runs.feature_extraction import feature_head
from stemma.tasks.runs.find_rate import check_one_rate
from stemma.tasks.runs.finetune_defaults import (
    StartModel,
    apply_defaults,
    log_defaults,
    published_dropouts,
    record_json,
    stated_keys,
    uses_layer_decay,
)
from stemma.tasks.runs.finetune_loader import TaskDataset, batch_indices
from stemma.tasks.runs.finetune_run import (
    SPLITS,
    TOKENIZER,
    example_to_json,
    input_encoder_for,
    run_to_end,
    split_file,
    task_dataset,
    write_jsonl,
)
from stemma.tasks.runs.finetune_spec import HeadFinetuneSpec
from stemma.tasks.runs.gpt_format import PAIR_TEMPLATE as GPT_PAIR
from stemma.tasks.runs.gpt_format import SINGLE_TEMPLATE as GPT_SINGLE
from stemma.tasks.runs.gpt_format import gpt_task_options, uses_gpt_format, with_gpt_tokens
from stemma.tasks.runs.static_vectors import model_over_vectors, refused_with_vectors, vector_overrides
from stemma.tasks.runs.sweep import Sweep
from stemma.tasks.runs.sweep import run_to_end as run_sweep
from stemma.training.callbacks import accepts_callbacks
from stemma.training.run_folder import RECIPE, RunConfig, TextReadingOptions
from stemma.training.run_lock import lock_new_run

logger = logging.getLogger(__name__)

RECURRENT_LENGTH = 512  # longest text that a recurrent network reads; it has no limit of its own
BATCH_SIZE = 32
START = "start"  # in the run folder: the model that was built over word vectors
DEFAULT_TASK_NAME = "task"  # name of the task in a single-task run
MAX_CLASSES_SHOWN = 10  # classes whose frequency is reported


@dataclass(frozen=True)
class TaskArguments:
    """A task as given on the command line or in a plan."""

    name: str  # classify, pair, ... or a data set's name
    files: Mapping[str, str | Path]  # train, dev, and perhaps test
    columns: Mapping[str, str] | None = None  # our column name -> the file's column name
    metrics: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)  # task options such as balance
    features: str | None = None  # layers that a BiLSTM reads; None: the task's own head reads the last one
    style: str | None = None  # input format of a causal LM: "gpt" or "plain"; None: from the recipe
    vectors: str | Path | None = None  # static word vectors: the model is a recipe, built over them
    tune_vectors: bool = False  # train the vectors, too
    frozen: bool = True  # with features: the network is not trained

    @property
    def kind(self) -> str:
        return task_kind_of(self.name)

    def options(self) -> dict[str, Any]:
        """The command-line options that repeat this task."""
        renamed = ",".join(f"{ours}={theirs}" for ours, theirs in (self.columns or {}).items())
        return {**{split: str(path) for split, path in self.files.items()}, "metric": list(self.metrics),
                **({"columns": renamed} if renamed else {}),
                **({"class-weights": self.values["balance"]} if "balance" in self.values else {}),
                **({"layers": self.features} if self.features else {}),
                **({"features": True} if self.features and self.frozen else {}),
                **({"style": self.style} if self.style else {}),
                **({"vectors": str(self.vectors)} if self.vectors else {}),
                **({"tune-vectors": True} if self.tune_vectors else {})}


@accepts_device
@accepts_callbacks
def finetune(task: TaskArguments, start: str | Path | None, out: str | Path, *, epochs: float | None = None,
             steps: int | None = None, minutes: float | None = None, seed: int = 0, changes: Sequence[str] = (),
             reading: TextReadingOptions = TextReadingOptions(), trials: Sweep | None = None, find_rate: bool = False,
             baseline: bool = True, overwrite: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Fine-tune a model on a task, once or as a sweep (`trials`); returns the object that `--json` prints. With
    `task.vectors`, `start` is a recipe; None: a BiLSTM.
    `find_rate` finds the learning rate first (`find_rate.py`); `baseline`: also fit the linear baseline; `callbacks`
    receive training events (`stemma.Callback`)."""
    length = TrainingLength(epochs, steps, minutes)
    run = Path(out)
    origin = check_start(task, start, run, overwrite)
    examples = read_splits(task, reading)
    if task.vectors is None:
        model = open_model(origin)
    else:
        model = model_over_vectors(start, task.vectors, task.kind, examples["train"], changes, seed)
    model.require_hidden_states("be fine-tuned")
    if task.features and task.style == "gpt":
        raise UserError("--features and --layers exclude --style gpt: a BiLSTM reads the hidden states, not the new "
                        "tokens.")
    frozen = task.features is not None and task.frozen
    gpt_format = not task.features and uses_gpt_format(model, task.kind, task.style)
    model = with_gpt_tokens(model) if gpt_format else model
    overridden = set(flatten(parse_changes(changes)[0]))
    overrides = FEATURES if frozen else {}
    if task.vectors is not None:
        stack = default_stack(model, task.kind, model.recipe.settings.finetuning.stack)
        overrides = vector_overrides(model, stack, task.tune_vectors)
    recipe = finetune_recipe(model, changes, overrides)
    rates = trials is not None and bool(trials.rates)
    check_one_rate(recipe, overridden, rates, find_rate)
    task_config = build_task_config(task, examples, model, recipe, DEFAULT_TASK_NAME, gpt_format)
    objective = build_task_objective(task_config, input_encoder_for(task_config, model.require_tokenizer()), seed)
    dataset = task_dataset(objective, examples, recipe.settings.training.batch_size)
    check_task_dataset(dataset, task_config, examples, str(task.files["train"]))
    warn_truncated(dataset, task_config)
    if model.is_encoder_decoder and task_stack(task_config) == ENCODER:
        recipe = encoder_only_recipe(recipe)
    steps_per_epoch = len(batch_indices(dataset.train, dataset.batch_size, None))
    new_layers = frozen or task.vectors is not None  # whose rate the recipe has
    start_model = StartModel.of(model, is_new=task.vectors is not None)
    recipe, budget, defaults = apply_defaults(recipe, start_model, length, steps_per_epoch, overridden,
                                              len(examples["train"]), rates or find_rate, new_layers=new_layers)
    options = task.options() | (trials.options() if trials else {}) | ({"find-rate": True} if find_rate else {})
    options |= {} if baseline or head_task(task.kind).linear_baseline is None else {"no-baseline": True}
    spec = HeadFinetuneSpec(task_config.kind, options, list(changes), {DEFAULT_TASK_NAME: task_config.to_json()},
                            vocab_size_for(model), dataset.batch_size, task.name, asdict(trials) if trials else None,
                            defaults=defaults, pretraining=record_json(model), find_rate=find_rate or None,
                            baseline=None if baseline else False)
    with atomic_folder(run, overwrite, checksums=False) as folder:
        save_run_inputs(folder, model, {DEFAULT_TASK_NAME: (task_config, examples)})
        if task.vectors is not None:
            save(model, folder / START)
        RunConfig(None, [], budget, seed, origin, reading, task=spec.to_json()).write(folder)
        write_file(folder / RECIPE, recipe.to_toml(registered_parts([task_config])))
    log_defaults(defaults)
    with lock_new_run(run):
        return run_sweep(run, show) if trials else run_to_end(run, show)


def check_start(task: TaskArguments, start: str | Path | None, run: Path, overwrite: bool) -> str:
    """Check the start and that the run folder is free; return the start model as it is written to run.json. A model
    that is built over vectors is stored in the run folder."""
    if task.vectors is None:
        if start is None:
            raise UserError("--model is missing; name the model to fine-tune, or word vectors with --vectors.")
        if task.tune_vectors:
            raise UserError("--tune-vectors trains the vectors of --vectors FILE; name the file, or leave it out.")
        return check_start_and_out(start, run, overwrite)
    refused_with_vectors({"--features": task.features, "--style": task.style})
    check_output_path(run, overwrite)
    return str((run / START).absolute())


def save_run_inputs(folder: Path, model: Model,
                    tasks: Mapping[str, tuple[TaskConfig, Mapping[str, Sequence[Example]]]]) -> None:
    """Write the tokenizer and the examples to the run folder, so that the run is self-contained."""
    model.require_tokenizer().save(folder / TOKENIZER)
    write_checksums(folder / TOKENIZER)
    for task_config, splits in tasks.values():
        for split, examples in splits.items():
            if examples:
                write_jsonl(folder / split_file(split, task_config),
                            [example_to_json(task_config, example) for example in examples])


def finetune_recipe(model: Model, overrides: Sequence[str] = (),
                    task_overrides: Mapping[str, object] | None = None) -> Recipe:
    """The model's recipe with [finetuning] applied, then `task_overrides`, then the command-line `overrides`."""
    recipe, other_changes = with_finetuning_choices(model.recipe, overrides)
    settings = recipe.settings
    changes = {"tokenizer.vocab_size": vocab_size_for(model), "training.batch_size": BATCH_SIZE,
               **finetune_overrides(settings), **published_dropouts(model.recipe), **(task_overrides or {})}
    frozen = {**changes, **flatten(parse_changes(other_changes)[0])}.get("training.frozen")
    if frozen not in ("all", settings.network.total_layers + 1):  # otherwise no layer learns
        if uses_layer_decay(StartModel.of(model), stated_keys(recipe)):
            changes |= layer_decay_overrides(settings)
        if settings.finetuning.unfreeze is not None:
            changes["training.unfreeze"] = settings.finetuning.unfreeze
    recipe = recipe.with_changes(changes, ORIGIN).with_overrides(other_changes)
    check_batch_schedule(recipe)
    return recipe


def check_batch_schedule(recipe: Recipe) -> None:
    if recipe.settings.training.batch_schedule is not None:
        raise UserError("training.batch_schedule is for pre-training: fine-tuning reads all examples in batches of "
                        "training.batch_size. Leave it out.")


def encoder_only_recipe(recipe: Recipe) -> Recipe:
    """The recipe without its decoder and objectives, for a task that only uses the encoder."""
    removed = [f"objective.{name}" for name in recipe.settings.objective]
    return recipe.with_changes({"remove": ["network.decoder", *removed]}, ORIGIN)


def vocab_size_for(model: Model) -> int:
    """The vocabulary size: the network's, or the tokenizer's if the task adds tokens."""
    return max(model.network.vocab_size, model.require_tokenizer().vocab_size)


# --- data -------------------------------------------------------------------------------------------------------------


def read_splits(task: TaskArguments, reading: TextReadingOptions) -> dict[str, list[Example]]:
    """Read and check the examples of each split; report label counts and train/test overlap."""
    examples = {split: read_examples(task.name, task.files[split], columns=task.columns, encoding=reading.encoding,
                                     errors=reading.errors) if split in task.files else []
                for split in SPLITS}
    for split in ("train", "dev"):
        check_labelled(examples[split], str(task.files.get(split)))
    kind = head_task(task.kind)
    for split in SPLITS:
        kind.check(examples[split], str(task.files.get(split)))
    if kind.has_classes:
        labels = labels_for(task, examples["train"])
        if len(labels) < 2:
            raise UserError(f'{task.files["train"]} has one label only, "{labels[0]}"; there is nothing to tell apart.')
        for split in ("dev", "test"):
            check_labels(labels, examples[split], str(task.files.get(split)))
    for split in ("dev", "test"):
        if examples[split] and (fraction := duplicate_fraction(examples["train"], examples[split])):
            logger.warning(
                f"{100 * fraction:.3g}% of the examples of {task.files[split]} also occur in the training set, so its "
                "scores partly measure memorization.")
    if description := describe_label_counts(examples["train"]):
        logger.info(description)
    return examples


def labels_for(task: TaskArguments, train: Sequence[Example]) -> list[str]:
    fixed = DATASETS[task.name].labels if task.name in DATASETS else None
    return list(fixed) if fixed else labels_of(train)


def describe_label_counts(train: Sequence[Example]) -> str | None:
    counts = label_counts(train)
    if not counts or all(_is_number(label) for label in counts) and len(counts) > MAX_CLASSES_SHOWN:
        return None  # regression labels are not classes
    total = sum(counts.values())
    frequencies = [f"{label} {count / total:.1%}" for label, count in list(counts.items())[:MAX_CLASSES_SHOWN]]
    more = f" and {len(counts) - MAX_CLASSES_SHOWN} more" if len(counts) > MAX_CLASSES_SHOWN else ""
    return f"{len(train):,} training examples: {', '.join(frequencies)}{more}."


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def build_task_config(task: TaskArguments, examples: Mapping[str, Sequence[Example]], model: Model, recipe: Recipe,
                      name: str, gpt_format: bool = False) -> TaskConfig:
    """The task config: heads, labels, input templates, metrics and options."""
    kind, train = head_task(task.kind), examples["train"]
    stack = default_stack(model, task.kind, recipe.settings.finetuning.stack)
    dataset = DATASETS.get(task.name)
    metrics = tuple(task.metrics) or (kind.default_metrics if dataset is None else dataset.metrics)
    labels = labels_for(task, train) if kind.has_classes else []
    values = dict(task.values)
    if dataset is not None:
        values["dataset"] = task.name
    values |= kind.infer_options(train, dataset, recipe.settings.finetuning)
    if not task.metrics:
        metrics = kind.suitable_metrics(metrics, parse_task_options(task.kind, values))
    check_metrics(task.kind, metrics)
    if labels:
        counts = label_counts(train)
        values["counts"] = [counts.get(label, 0) for label in labels]
    if "balance" in values:
        values["balance"] = class_weights(values["balance"], task.kind, labels, values.get("counts", []))
    if model.is_encoder_decoder:
        values["stack"] = stack
    single, pair = (GPT_SINGLE, GPT_PAIR) if gpt_format else input_templates(recipe.settings.corpus, model.tokenizer)
    values |= gpt_task_options(task.name, train) if gpt_format else {}
    max_length = max_sequence_length(recipe, kind.default_max_length)
    network = recipe.settings.network
    heads: Mapping[str, HeadSpec] = {name: feature_head(network, task.kind, len(labels), task.features, stack)} \
        if task.features is not None else default_task_heads(model, task.kind, len(labels) or 1, name, stack)
    heads = with_pooling(heads, name, recipe.settings.finetuning.pooling)
    if kind.supports_crf and recipe.settings.finetuning.crf:
        heads = with_crf(heads, name, len(labels), "balance" in values)
    more = tuple(extend_template(pair, texts, num_segments(network)) for texts in range(3, kind.max_texts + 1))
    return TaskConfig(name, task.kind, tuple(labels), heads, single, pair, max_length, metrics,
                      parse_task_options(task.kind, values), more)


def num_segments(network: NetworkSettings) -> int | None:
    """The number of segment ids; None: unlimited, because attention only compares them for equality."""
    return None if network.attention.segments else network.embedding.segments


def max_sequence_length(recipe: Recipe, default: int | None) -> int:
    """The maximal sequence length: from the command line, else the model's, capped at the default of the kind."""
    settings, overridden = recipe.settings, recipe.origin.get("corpus.sequence_length") == "command line"
    model_max = settings.network.max_length or settings.corpus.sequence_length
    if [*settings.network.parts().values()][-1].body.carries_state:  # its rows only limit the steps of back-propagation
        model_max = max(model_max, RECURRENT_LENGTH)
    if overridden:
        return settings.corpus.sequence_length
    return min(model_max, default) if default else model_max


def check_task_dataset(dataset: TaskDataset, task_config: TaskConfig, examples: Mapping[str, Sequence[Example]],
                       name: str) -> None:
    """Check before training that the examples can be learned from and that the metrics apply."""
    head_task(task_config.kind).check_training_set(dataset.train, task_config.values, name)
    if not dataset.train:
        raise UserError(f"{name} gives no training example; check its content.")
    for split in ("dev", "test"):
        check_metrics_apply(task_config, examples[split])


def warn_truncated(dataset: TaskDataset, task_config: TaskConfig) -> None:
    if count := dataset.objective.input_encoder.num_truncated:
        logger.warning(f"{count:,} inputs are longer than {task_config.longest} tokens and are truncated.")
