"""`stemma pipeline`: a plan carried out in one folder, from its checks to its report; run again, only what changed is
made again."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stemma.device import takes_device
from stemma.errors import Interrupted, UserError
from stemma.files import (
    NoSpace,
    folder_atomically,
    only_here,
    refuse_non_empty,
    remove_leftovers,
    sha256,
    write_atomically,
)
from stemma.notes import silenced
from stemma.stored import read_object, store_object
from stemma.tasks.facts import HeadFacts
from stemma.tasks.finetune import PIPELINE
from stemma.tasks.metrics import metrics_of
from stemma.tasks.pipeline.blend import read_blend
from stemma.tasks.pipeline.contamination import contamination
from stemma.tasks.pipeline.payoff import payoff
from stemma.tasks.pipeline.plan import PipelinePlan, Stage
from stemma.tasks.pipeline.provenance import Provenance, digest
from stemma.tasks.pipeline.reader import read_plan
from stemma.tasks.pipeline.recipes import recipes_of
from stemma.tasks.pipeline.report import write
from stemma.tasks.pipeline.stages import Stages
from stemma.tasks.pipeline.texts import example_documents, numbered_texts
from stemma.tasks.prepare import read_sets
from stemma.training.callbacks import takes_callbacks
from stemma.training.graph import Ledger, remembered
from stemma.training.run import MODEL, RESULT, read_run

logger = logging.getLogger(__name__)

REPORT, CONTAMINATION = "report.md", "contamination.json"


@takes_device
@takes_callbacks
def pipeline(path: str | Path, out: str | Path, *, overwrite: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Carry out a plan; in the folder of an earlier one, what is unchanged is reused. Returns what `--json` prints."""
    run, plan = Path(out), read_plan(path)
    known = is_pipeline(run) and not overwrite
    if not known:
        refuse_non_empty(run, overwrite)
    inside = [stage.entry.model for stage in plan.of_kind("model")
              if Path(stage.entry.model or "").resolve().is_relative_to(run.resolve())]
    if inside and not known:
        raise UserError(f"the model {inside[0]} lies in {run}, which --overwrite would replace; choose another --out.")
    stages = _prepared(run, plan, show)
    if known:
        with _alone(run):
            (run / RESULT).unlink(missing_ok=True)
            write_atomically(run / PIPELINE, plan.to_toml())
            return _carry_out(stages)
    with folder_atomically(run, overwrite, checksums=False) as place:
        write_atomically(place / PIPELINE, plan.to_toml())
    try:
        with _alone(run):
            return _carry_out(stages)
    except UserError as error:
        if any((run / "stages").glob("*")):
            raise
        shutil.rmtree(run)  # nothing was trained: leave nothing behind
        if isinstance(error, NoSpace):  # so there is nothing to go on with either
            raise NoSpace(error.what) from error
        raise


def resume(out: str | Path, *, show: bool = False) -> dict[str, Any]:
    """Go on with a pipeline that was interrupted; a finished one says what it reported then."""
    run = Path(out)
    if (run / RESULT).is_file():
        logger.info(f"{run} is finished; nothing to do.")
        return read_object(run / RESULT, f"delete it, and `stemma resume {run}` writes it again.")
    stages = _prepared(run, read_plan(run / PIPELINE), show)
    before = _ledger(run).numbers()
    changed = [place for place, number in stages.places().items() if before and before.get(place) != number]
    if changed:
        raise UserError(f"what goes into {changed[0]} has changed since {run} was interrupted, so it cannot go on as "
                        f"before; bring the old files back, or `stemma pipeline {run / PIPELINE} --out {run}` makes "
                        "what changed anew.")
    with _alone(run):
        return _carry_out(stages)


def is_pipeline(run: Path) -> bool:
    return (run / PIPELINE).is_file()


def _ledger(run: Path) -> Ledger:
    return Ledger(run, f"delete it, and `stemma pipeline {run / PIPELINE} --out {run}` makes all stages anew.")


def _alone(run: Path) -> Any:
    return only_here(run, f"another process is at work in {run}; wait for it, or stop it first.")


def _prepared(run: Path, plan: PipelinePlan, show: bool) -> Stages:
    """Whatever can be wrong is found here, before anything is trained; all of it, not only the first."""
    examples, wrong = {}, []
    for stage in plan.of_kind("task"):
        try:
            with silenced():  # the stage says it when it begins
                examples[stage.name] = read_sets(stage.as_task(), stage.reading)
        except UserError as error:
            wrong.append(error)
    try:
        recipes = recipes_of(plan)
    except UserError as error:
        wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise UserError("the plan cannot be carried out", [line for error in wrong
                                                           for line in (("", error.message), *error.problems)])
    return Stages(run, plan, Provenance(plan), recipes, examples, show)


def _carry_out(stages: Stages) -> dict[str, Any]:
    run, plan = stages.run, stages.plan
    remove_leftovers(run)
    lineage = stages.provenance.lineage()
    places = stages.places()
    states = _ledger(run).settle(places, lineage)
    for place in places:
        if (state := states[place]) != "new" and place.count("/") == 1:
            said = "is unchanged and is kept" if state == "kept" else f"has changed; the old one lies in {run / 'past'}"
            logger.info(f"{place.partition('/')[2]} {said}.")
    results: dict[str, dict[str, Any] | None] = {}
    try:
        found = _contaminated(stages)
        _tell_contamination(stages, found)
        for name in plan.stages:
            results[name] = stages.carry_out(name)
        trials = stages.trials()
        measures = {name: stages.measure(name) for name in plan.stages}
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted(f"stopped, and everything so far is saved; `stemma resume {run}` goes on.") from stop
    except NoSpace as error:
        raise error.go_on(f"`stemma resume {run}` goes on") from error
    rows = [_row(stages, stage, results[name], measures) for name, stage in plan.stages.items()]
    last = next((row for row in reversed(rows) if row["kind"] == "task"), rows[-1])
    result = {"run": str(run), "stages": rows, "general": plan.general()[0], "ngram": plan.header.ngram,
              "contamination": found, "payoff": _paid(stages, trials), "lineage": lineage,
              "metrics": last["metrics"], "seconds": sum(row["seconds"] or 0.0 for row in rows)}
    _finish(stages, last["stage"], result)
    return result


def _finish(stages: Stages, last: str, result: dict[str, object]) -> None:
    """The last stage's model as the pipeline's own, the report, and at the very end the result: then it is finished."""
    from stemma.exchange.load import find_folder

    run = stages.run
    with folder_atomically(run / MODEL, overwrite=True) as place:
        shutil.copytree(find_folder(stages.output(last)), place, dirs_exist_ok=True)
    write_atomically(run / REPORT, write(result))
    store_object(run / RESULT, result)


def _contaminated(stages: Stages) -> list[dict[str, Any]]:
    """Of every task: what of its dev and test sets stands in the text of the stages before it. Kept by what was read,
    for it takes a while where there is much text."""
    plan, file = stages.plan, stages.run / CONTAMINATION
    number = digest([[entry["after"], entry["data"]] for entry in stages.provenance.lineage()], plan.header.ngram)
    found = remembered(file, None, number, "delete it: it is counted again.", lambda: {"rows": _overlaps(stages)})
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def _overlaps(stages: Stages) -> list[dict[str, Any]]:
    plan, found = stages.plan, list[dict[str, Any]]()
    for stage in plan.of_kind("task"):
        examples = stages.examples[stage.name]
        texts = {before.name: lambda before=before: numbered_texts(before.entry.corpus, before.reading)
                 for before in plan.line(stage.name) if before.entry.corpus}
        texts |= {before.name: lambda before=before: _with_examples(stages, before)
                  for before in plan.line(stage.name) if before.entry.texts_of}
        sets = {part: examples[part] for part in ("dev", "test")}
        found += [{"task": stage.name, **row} for row in contamination(texts, sets, plan.header.ngram)]
    return found


def _tell_contamination(stages: Stages, found: list[dict[str, Any]]) -> None:
    read = [(f"{row['task']}, {row['set']}", f"{row['read']:,} of {row['examples']:,} examples stand in the text of "
             f"{row['text']}, such as {row['worst'][0]['where']}") for row in found if row["read"]]
    if read and stages.plan.header.contamination == "refuse":
        raise UserError("the stages would read what the task is tested on; take it out of the text, or set "
                        'contamination = "warn"', read)
    for where, what in read:
        logger.warning(f"{where}: {what}; scores on them say less.")


def _with_examples(stages: Stages, stage: Stage) -> Any:
    number = -1
    for number, text in numbered_texts(stage.entry.corpus, stage.reading):
        yield number, text
    texts = example_documents(stages.examples[stage.entry.texts_of or ""]["train"])
    yield from enumerate(texts, number + 1)


def _row(stages: Stages, stage: Stage, result: dict[str, Any] | None,
         measures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What there is to tell of a stage."""
    measured = {key: value for key, value in measures[stage.name].items() if key != "hash"}
    before = measures[stage.after]["general_loss"] if stage.after else None
    now = measured["general_loss"]
    mixed = read_blend(stages.folder(stage.name)) if stage.entry.interpolate else None
    weights = Path(stages.output(stage.name)) / MODEL / "model.safetensors"
    return {"stage": stage.name, "kind": stage.kind, "after": stage.after, "about": _about(stage),
            "run": None if stage.kind == "model" else str(stages.folder(stage.name)),
            "model": stages.output(stage.name), "weights": sha256(weights) if weights.is_file() else None, **measured,
            "forgotten": None if before is None or now is None else now - before,
            "share": mixed["share"] if mixed else None,
            "metric": _metric(stages, stage)[1] if stage.kind == "task" else None,
            "metrics": (mixed or result or {}).get("metrics"), "steps": (result or {}).get("steps"),
            "tokens": (result or {}).get("tokens"), "seconds": (result or {}).get("seconds")}


def _about(stage: Stage) -> str:
    """What a stage learns from, in a few words; where it lies stands in the lineage."""
    entry = stage.entry
    if stage.kind != "text":
        return entry.task or Path(entry.model or "").name
    texts = [Path(path).name for path in entry.corpus]
    texts += [f"the texts of {entry.texts_of}"] if entry.texts_of else []
    return ", ".join(texts) + (f", and {entry.replay:.0%} general text" if entry.replay else "")


def _metric(stages: Stages, stage: Stage) -> tuple[str, str]:
    """The kind of a task, and the metric that decides."""
    card = next(iter(HeadFacts.of(read_run(stages.folder(stage.name))[1]).read_cards().values()))
    return card.kind, card.metrics[0]


def _paid(stages: Stages, trials: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, by_start in trials.items():
        kind, metric = _metric(stages, stages.plan.stages[name])
        scores = {start: [run["metrics"]["dev"][metric] for run in runs] for start, runs in by_start.items()}
        rows = payoff(scores, metrics_of(kind)[metric].higher_is_better)
        found[name] = [{"metric": metric, **row} for row in rows]
    return found
