"""Multi-task fine-tuning: one encoder with a head per task (MT-DNN, arXiv:1901.11504).

Batches of all tasks are shuffled together, and all weights except the heads are shared; the optimizer is Adamax.
The result is one model with all heads. Optionally, each task is then fine-tuned separately from the shared weights, in
a run of its own in `tasks/NAME`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stemma.atomic_files import atomic_folder
from stemma.checksummed_files import read_verified_object, write_file, write_object
from stemma.device import accepts_device
from stemma.errors import Interrupted, UserError
from stemma.exchange.load import open_model
from stemma.model import Model
from stemma.network.san_head import SanHead
from stemma.notes import about
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten, parse_changes
from stemma.task_config import TaskConfig, registered_parts
from stemma.tasks.data.examples import Example
from stemma.tasks.runs import finetune_run, seq2seq
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.common import ORIGIN, TrainingLength, check_start_and_out, with_finetuning_choices
from stemma.tasks.runs.finetune import (
    TaskArguments,
    build_task_config,
    check_batch_schedule,
    check_task_dataset,
    finetune_recipe,
    read_splits,
    save_run_inputs,
    warn_truncated,
)
from stemma.tasks.runs.finetune_defaults import record_json
from stemma.tasks.runs.finetune_loader import TaskDataset, batch_indices
from stemma.tasks.runs.finetune_run import (
    SPLITS,
    TOKENIZER,
    example_to_json,
    input_encoder_for,
    read_split,
    split_file,
    task_dataset,
)
from stemma.tasks.runs.finetune_spec import MULTITASK, HeadFinetuneSpec
from stemma.tasks.runs.multitask_plan import MultitaskEntry, MultitaskPlan, read_multitask_plan
from stemma.tasks.toml_plan import Problems, raise_problems
from stemma.training.callbacks import accepts_callbacks
from stemma.training.checkpoints import latest_checkpoint
from stemma.training.run_folder import MODEL, RECIPE, RESULT, RunConfig, TextReadingOptions, read_result, read_run
from stemma.training.run_lock import lock_new_run, lock_run

logger = logging.getLogger(__name__)

SHARED = "shared.json"  # result of the joint training, until the separate runs are finished
SINGLE_TASK_FOLDER = "tasks"  # the folder of the separate runs
# arXiv:1901.11504, section 4.2, and the defaults of its released code
MT_DNN: dict[str, Any] = {"optimizer": {"kind": "adamax", "epsilon": 1e-6}, "learning_rate": 5e-5, "width": 768,
                          "epochs": 5.0, "warmup": 0.1, "schedule": {"kind": "linear"}, "clip_norm": 1.0}
Splits = dict[str, list[Example]]


@accepts_device
@accepts_callbacks
def multitask(plan: str | Path, start: str | Path, out: str | Path, *, epochs: float | None = None,
              steps: int | None = None, minutes: float | None = None, seed: int = 0, changes: Sequence[str] = (),
              reading: TextReadingOptions = TextReadingOptions(), baseline: bool = True, overwrite: bool = False,
              device: str | None = None, callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Fine-tune a model on all tasks of a plan; returns the object that `--json` prints. The length applies to the
    joint training and to each separate run. `baseline`: also fit the linear baseline of each task. A plan of
    text-to-text tasks trains generation (`seq2seq.py`)."""
    task_plan = read_multitask_plan(plan)
    if task_plan.pairs:
        return seq2seq.finetune_seq2seq(start, task_plan.seq2seq_data(), out, epochs=epochs, steps=steps,
                                        minutes=minutes, seed=seed, changes=changes, reading=reading,
                                        overwrite=overwrite, show=show)
    length = TrainingLength(epochs, steps, minutes)
    length = TrainingLength(task_plan.epochs) if length == TrainingLength() else length
    run = Path(out)
    origin = check_start_and_out(start, run, overwrite)
    examples = _read_all(task_plan, reading)
    model = open_model(start)
    model.require_hidden_states("be fine-tuned")
    recipe = _multitask_recipe(model, task_plan, changes)
    overridden = {*flatten(parse_changes(changes)[0]), *flatten({"training": task_plan.training})}
    task_configs = _task_configs(task_plan, examples, model, recipe)
    batch_size = recipe.settings.training.batch_size
    batches = {name: _batches_per_epoch(_task_dataset(task_plan, task_config, examples[name], model, seed, batch_size))
               for name, task_config in task_configs.items()}
    recipe, budget = length.apply_to(recipe, sum(batches.values()), overridden)
    stored_configs = {name: task_config.to_json() for name, task_config in task_configs.items()}
    spec = HeadFinetuneSpec(MULTITASK, {} if baseline else {"no-baseline": True}, list(changes), stored_configs,
                            model.network.vocab_size, batch_size, command=[MULTITASK, str(task_plan.path.absolute())],
                            length={unit: value for unit, value in asdict(length).items() if value is not None},
                            stated=sorted(overridden), batches=batches, finetune=task_plan.finetune,
                            pretraining=record_json(model), baseline=None if baseline else False)
    with atomic_folder(run, overwrite, checksums=False) as folder:
        save_run_inputs(folder, model, {name: (task_config, examples[name])
                                        for name, task_config in task_configs.items()})
        RunConfig(None, [], budget, seed, origin, reading, task=spec.to_json()).write(folder)
        write_file(folder / RECIPE, recipe.to_toml(registered_parts(task_configs.values())))
    with lock_new_run(run):
        return run_to_end(run, show)


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Train all tasks jointly, then each separately if the plan says so; also called by `stemma resume`."""
    spec = HeadFinetuneSpec.from_run_config(read_run(run)[1])
    if not spec.finetune:
        return finetune_run.run_to_end(run, show)
    if not (run / SHARED).is_file():
        write_object(run / SHARED, finetune_run.train_and_score(run, show))
    result = read_verified_object(run / SHARED, f"delete it, and `stemma resume {run}` scores the tasks again.")
    result["finetuned"] = {name: _finetune_single(run, name, show) for name in spec.cards}
    write_object(run / RESULT, result)
    return result


# --- preparation ------------------------------------------------------------------------------------------------------


def _read_all(plan: MultitaskPlan, reading: TextReadingOptions) -> dict[str, Splits]:
    """Read the examples of all tasks; report all errors together."""
    problems: Problems = []
    examples = {}
    for name in plan.tasks:
        try:
            with about(name):
                examples[name] = read_splits(_task_arguments(plan, name), reading)
        except UserError as error:
            problems.append((f"tasks.{name}", error.message))
            problems += [(f"  {location}", problem) for location, problem in error.problems]
    if problems:
        raise_problems(plan.path, problems)
    return examples


def _task_arguments(plan: MultitaskPlan, name: str) -> TaskArguments:
    entry = plan.tasks[name]
    return TaskArguments(entry.task_name, plan.files(name), entry.columns or None, entry.metric,
                         {"weight": entry.weight})


def _multitask_recipe(model: Model, plan: MultitaskPlan, overrides: Sequence[str]) -> Recipe:
    """The model's recipe with MT-DNN's fine-tuning settings, then the plan's, then the command-line `overrides`."""
    settings = model.recipe.values["finetuning"]
    removed = [f"finetuning.{key}" for key in ("layer_decay", "layer_decay_top") if key in settings]
    shared = model.recipe.with_changes({"remove": removed, "finetuning": MT_DNN}, ORIGIN)
    with_section, other_changes = with_finetuning_choices(shared, overrides)
    recipe = finetune_recipe(replace(model, recipe=with_section))
    recipe = recipe.with_changes({"training": plan.training}, plan.path.name) if plan.training else recipe
    recipe = recipe.with_overrides(other_changes)
    check_batch_schedule(recipe)
    return recipe


def _task_configs(plan: MultitaskPlan, examples: Mapping[str, Splits], model: Model, recipe: Recipe) -> \
        dict[str, TaskConfig]:
    return {name: _with_plan_head(build_task_config(_task_arguments(plan, name), examples[name], model, recipe, name),
                                  entry)
            for name, entry in plan.tasks.items()}


def _with_plan_head(task_config: TaskConfig, entry: MultitaskEntry) -> TaskConfig:
    """Apply the head settings of the plan."""
    heads = dict(task_config.heads)
    if entry.head == "san":
        default = SanHead(len(task_config.labels), dropout=getattr(heads[task_config.name], "dropout", SanHead.dropout))
        heads = {task_config.name: default if entry.steps is None else replace(default, steps=entry.steps)}
    if entry.dropout is not None:
        heads[task_config.name] = replace(heads[task_config.name], dropout=entry.dropout)  # type: ignore[type-var]
    return replace(task_config, heads=heads)


def _task_dataset(plan: MultitaskPlan, task_config: TaskConfig, examples: Splits, model: Model, seed: int,
                  batch_size: int) -> TaskDataset:
    input_encoder = input_encoder_for(task_config, model.require_tokenizer())
    dataset = task_dataset(build_task_objective(task_config, input_encoder, seed), examples, batch_size)
    check_task_dataset(dataset, task_config, examples, str(plan.files(task_config.name)["train"]))
    with about(task_config.name):
        warn_truncated(dataset, task_config)
    return dataset


def _batches_per_epoch(dataset: TaskDataset) -> int:
    return len(batch_indices(dataset.train, dataset.batch_size, None))


# --- separate fine-tuning of each task --------------------------------------------------------------------------------


def _finetune_single(run: Path, name: str, show: bool) -> dict[str, Any]:
    """Fine-tune one task separately from the shared weights; returns its result."""
    folder = run / SINGLE_TASK_FOLDER / name
    result = read_result(folder)
    if result is None:
        if latest_checkpoint(folder) is None:
            _create_single_run(run, name, folder)
        try:
            with lock_run(folder), about(name):
                result = finetune_run.run_to_end(folder, show)
        except Interrupted:
            raise Interrupted(f"stopped during the separate fine-tuning of {name}, and saved; `stemma resume {run}` "
                              "goes on from there.") from None
    return {key: result[key] for key in ("run", "steps", "seconds", "metrics")}


def _create_single_run(run: Path, name: str, run_folder: Path) -> None:
    """Create a run that starts from the shared weights and the trained head, with the examples of one task."""
    recipe, run_config = read_run(run)
    spec = HeadFinetuneSpec.from_run_config(run_config)
    task_config = spec.parse_task_configs()[name]
    if recipe.settings.training.fresh:  # the top layers are trained by now
        recipe = recipe.with_changes({"training.fresh": 0}, ORIGIN)
    assert spec.length is not None and spec.batches is not None and spec.stated is not None
    recipe, budget = TrainingLength(**spec.length).apply_to(recipe, spec.batches[name], spec.stated)
    single_spec = replace(spec, kind=task_config.kind, cards={name: spec.cards[name]}, baseline=False)
    with atomic_folder(run_folder, overwrite=True, checksums=False) as folder:
        shutil.copytree(run / TOKENIZER, folder / TOKENIZER)
        for split in SPLITS:
            if examples := read_split(run, split, task_config):
                finetune_run.write_jsonl(folder / split_file(split, task_config),
                                         [example_to_json(task_config, example) for example in examples])
        replace(run_config, budget=budget, start=str((run / MODEL).absolute()),
                task=single_spec.to_json()).write(folder)
        write_file(folder / RECIPE, recipe.to_toml(registered_parts([task_config])))
