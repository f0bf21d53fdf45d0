"""`stemma pipeline`: runs a plan in a folder, from its checks to its report. A second run repeats only what changed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stemma.atomic_files import (
    DiskFullError,
    atomic_folder,
    atomic_write,
    check_output_path,
    lock_folder,
    remove_leftovers,
    sha256,
)
from stemma.checksummed_files import read_verified_object, write_object
from stemma.device import accepts_device
from stemma.errors import Interrupted, UserError
from stemma.notes import silenced
from stemma.tasks.metrics import metrics_for
from stemma.tasks.pipeline.contamination import contamination
from stemma.tasks.pipeline.interpolation import read_interpolation
from stemma.tasks.pipeline.plan import PipelinePlan, PipelineStage
from stemma.tasks.pipeline.provenance import StageDigests, digest
from stemma.tasks.pipeline.read_plan import read_pipeline_plan
from stemma.tasks.pipeline.report import render_report
from stemma.tasks.pipeline.stage_gains import stage_gains
from stemma.tasks.pipeline.stage_recipes import stage_recipes
from stemma.tasks.pipeline.stage_runner import StageRunner
from stemma.tasks.pipeline.stage_texts import example_documents, numbered_texts
from stemma.tasks.runs.common import PIPELINE
from stemma.tasks.runs.finetune import read_splits
from stemma.tasks.runs.finetune_spec import HeadFinetuneSpec
from stemma.training.callbacks import accepts_callbacks
from stemma.training.run_folder import MODEL, RESULT, read_run
from stemma.training.run_graph import RunArchive, cached_result

logger = logging.getLogger(__name__)

REPORT, CONTAMINATION = "report.md", "contamination.json"


@accepts_device
@accepts_callbacks
def pipeline(plan: str | Path, out: str | Path, *, changes: Sequence[str] = (), overwrite: bool = False,
             device: str | None = None, callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Run a plan; reuses the unchanged stages of an existing folder. Returns the object that `--json` prints. `plan` is
    a file, or the name of a plan that comes with Stemma; `changes` are such as "stages.finetune.train=train.tsv"."""
    run, checked_plan = Path(out), read_pipeline_plan(plan, changes)
    exists = is_pipeline(run) and not overwrite
    if not exists:
        check_output_path(run, overwrite)
    inside = [stage.entry.model for stage in checked_plan.of_kind("model")
              if Path(stage.entry.model or "").resolve().is_relative_to(run.resolve())]
    if inside and not exists:
        raise UserError(f"the model {inside[0]} lies in {run}, which --overwrite would replace; choose another --out.")
    stages = _prepare_runner(run, checked_plan, show)
    if exists:
        with _lock(run):
            (run / RESULT).unlink(missing_ok=True)
            atomic_write(run / PIPELINE, checked_plan.to_toml())
            return _run_stages(stages)
    with atomic_folder(run, overwrite, checksums=False) as folder:
        atomic_write(folder / PIPELINE, checked_plan.to_toml())
    try:
        with _lock(run):
            return _run_stages(stages)
    except UserError as error:
        if any((run / "stages").glob("*")):
            raise
        shutil.rmtree(run)  # nothing was trained: remove the folder
        if isinstance(error, DiskFullError):  # and nothing to resume
            raise DiskFullError(error.problem) from error
        raise


def resume(out: str | Path, *, show: bool = False) -> dict[str, Any]:
    """Resume an interrupted pipeline; a finished one returns its result."""
    run = Path(out)
    if (run / RESULT).is_file():
        logger.info(f"{run} is finished; nothing to do.")
        return read_verified_object(run / RESULT, f"delete it, and `stemma resume {run}` writes it again.")
    stages = _prepare_runner(run, read_pipeline_plan(run / PIPELINE), show)
    before = _ledger(run).digests()
    changed = [folder for folder, digest in stages.run_digests().items() if before and before.get(folder) != digest]
    if changed:
        raise UserError(f"what goes into {changed[0]} has changed since {run} was interrupted, so it cannot go on as "
                        f"before; bring the old files back, or `stemma pipeline {run / PIPELINE} --out {run}` makes "
                        "what changed anew.")
    with _lock(run):
        return _run_stages(stages)


def is_pipeline(run: Path) -> bool:
    return (run / PIPELINE).is_file()


def _ledger(run: Path) -> RunArchive:
    return RunArchive(run, f"delete it, and `stemma pipeline {run / PIPELINE} --out {run}` makes all stages anew.")


def _lock(run: Path) -> Any:
    return lock_folder(run, f"another process is at work in {run}; wait for it, or stop it first.")


def _prepare_runner(run: Path, plan: PipelinePlan, show: bool) -> StageRunner:
    """Check data and recipes before training, and report all problems together."""
    examples, errors = {}, []
    for stage in plan.of_kind("task"):
        try:
            with silenced():  # the stage reports it when it starts
                examples[stage.name] = read_splits(stage.task_arguments(), stage.reading_options)
        except UserError as error:
            errors.append(error)
    try:
        recipes = stage_recipes(plan)
    except UserError as error:
        errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserError("the plan cannot be run", [line for error in errors
                                                   for line in (("", error.message), *error.problems)])
    return StageRunner(run, plan, StageDigests(plan), recipes, examples, show)


def _run_stages(runner: StageRunner) -> dict[str, Any]:
    run, plan = runner.run, runner.plan
    remove_leftovers(run)
    lineage = runner.provenance.lineage()
    digests = runner.run_digests()
    states = _ledger(run).reconcile(digests, lineage)
    for folder in digests:
        if (state := states[folder]) != "new" and folder.count("/") == 1:
            what = "is unchanged and is kept" if state == "kept" else f"has changed; the old one is in {run / 'past'}"
            logger.info(f"{folder.partition('/')[2]} {what}.")
    results: dict[str, dict[str, Any] | None] = {}
    try:
        contaminated = _check_contamination(runner)
        _report_contamination(runner, contaminated)
        for name in plan.stages:
            results[name] = runner.run_stage(name)
        trials = runner.ablation_runs()
        losses = {name: runner.stage_losses(name) for name in plan.stages}
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted(f"stopped, and everything so far is saved; `stemma resume {run}` goes on.") from stop
    except DiskFullError as error:
        raise error.with_advice(f"`stemma resume {run}` goes on") from error
    rows = [_stage_row(runner, stage, results[name], losses) for name, stage in plan.stages.items()]
    last = next((row for row in reversed(rows) if row["kind"] == "task"), rows[-1])
    result = {"run": str(run), "stages": rows, "general": plan.general()[0], "ngram": plan.header.ngram,
              "contamination": contaminated, "payoff": _all_stage_gains(runner, trials), "lineage": lineage,
              "metrics": last["metrics"], "seconds": sum(row["seconds"] or 0.0 for row in rows)}
    _finish(runner, last["stage"], result)
    return result


def _finish(runner: StageRunner, last: str, result: dict[str, object]) -> None:
    """Copy the model of the last stage, write the report, and last the result, which marks the pipeline as finished."""
    from stemma.exchange.load import resolve_model_folder

    run = runner.run
    with atomic_folder(run / MODEL, overwrite=True) as folder:
        shutil.copytree(resolve_model_folder(runner.output(last)), folder, dirs_exist_ok=True)
    atomic_write(run / REPORT, render_report(result))
    write_object(run / RESULT, result)


def _check_contamination(runner: StageRunner) -> list[dict[str, Any]]:
    """The contamination of every task by the text of its earlier stages; cached, because it is slow for large text."""
    plan, file = runner.plan, runner.run / CONTAMINATION
    key = digest([[entry["after"], entry["data"]] for entry in runner.provenance.lineage()], plan.header.ngram)
    cached = cached_result(file, None, key, "delete it: it is counted again.",
                           lambda: {"rows": _compute_contamination(runner)})
    rows: list[dict[str, Any]] = cached["rows"]
    return rows


def _compute_contamination(runner: StageRunner) -> list[dict[str, Any]]:
    plan, rows = runner.plan, list[dict[str, Any]]()
    for stage in plan.of_kind("task"):
        examples = runner.examples[stage.name]
        texts = {earlier.name: lambda earlier=earlier: numbered_texts(earlier.entry.corpus, earlier.reading_options)
                 for earlier in plan.ancestors(stage.name) if earlier.entry.corpus}
        texts |= {earlier.name: lambda earlier=earlier: _with_examples(runner, earlier)
                  for earlier in plan.ancestors(stage.name) if earlier.entry.texts_of}
        sets = {part: examples[part] for part in ("dev", "test")}
        rows += [{"task": stage.name, **row} for row in contamination(texts, sets, plan.header.ngram)]
    return rows


def _report_contamination(runner: StageRunner, rows: list[dict[str, Any]]) -> None:
    contaminated = [(f"{row['task']}, {row['set']}",
                     f"{row['read']:,} of {row['examples']:,} examples occur in the text of {row['text']}, such as "
                     f"{row['worst'][0]['where']}") for row in rows if row["read"]]
    if contaminated and runner.plan.header.contamination == "refuse":
        raise UserError("the stages would read what the task is tested on; take it out of the text, or set "
                        'contamination = "warn"', contaminated)
    for where, what in contaminated:
        logger.warning(f"{where}: {what}; their scores may be too high.")


def _with_examples(runner: StageRunner, stage: PipelineStage) -> Any:
    index = -1
    for index, text in numbered_texts(stage.entry.corpus, stage.reading_options):
        yield index, text
    texts = example_documents(runner.examples[stage.entry.texts_of or ""]["train"])
    yield from enumerate(texts, index + 1)


def _stage_row(runner: StageRunner, stage: PipelineStage, result: dict[str, Any] | None,
               losses: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The entry of a stage in the result."""
    measured = {key: value for key, value in losses[stage.name].items() if key != "hash"}
    before = losses[stage.after]["general_loss"] if stage.after else None
    after = measured["general_loss"]
    interpolated = read_interpolation(runner.folder(stage.name)) if stage.entry.interpolate else None
    weights = Path(runner.output(stage.name)) / MODEL / "model.safetensors"
    return {"stage": stage.name, "kind": stage.kind, "after": stage.after, "about": _describe_data(stage),
            "run": None if stage.kind == "model" else str(runner.folder(stage.name)),
            "model": runner.output(stage.name), "weights": sha256(weights) if weights.is_file() else None, **measured,
            "forgotten": None if before is None or after is None else after - before,
            "share": interpolated["share"] if interpolated else None,
            "metric": _metric(runner, stage)[1] if stage.kind == "task" else None,
            "metrics": (interpolated or result or {}).get("metrics"), "baseline": (result or {}).get("baseline"),
             "steps": (result or {}).get("steps"),
            "tokens": (result or {}).get("tokens"), "seconds": (result or {}).get("seconds")}


def _describe_data(stage: PipelineStage) -> str:
    """A short description of the data of a stage; the lineage has the paths."""
    entry = stage.entry
    if stage.kind != "text":
        return entry.task or Path(entry.model or "").name
    texts = [Path(path).name for path in entry.corpus]
    texts += [f"the texts of {entry.texts_of}"] if entry.texts_of else []
    return ", ".join(texts) + (f", and {entry.replay:.0%} general text" if entry.replay else "")


def _metric(runner: StageRunner, stage: PipelineStage) -> tuple[str, str]:
    """The kind and the selection metric of a task."""
    _, config = read_run(runner.folder(stage.name))
    task_config = next(iter(HeadFinetuneSpec.from_run_config(config).parse_task_configs().values()))
    return task_config.kind, task_config.metrics[0]


def _all_stage_gains(runner: StageRunner,
                     trials: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    gains = {}
    for name, by_start in trials.items():
        kind, metric = _metric(runner, runner.plan.stages[name])
        scores = {start: [run["metrics"]["dev"][metric] for run in runs] for start, runs in by_start.items()}
        rows = stage_gains(scores, metrics_for(kind)[metric].higher_is_better)
        gains[name] = [{"metric": metric, **row} for row in rows]
    return gains
