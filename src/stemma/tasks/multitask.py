"""One encoder learns several tasks at once, each with a head of its own (MT-DNN, arXiv:1901.11504).

Batches of all tasks are shuffled together, and every weight but the heads' is shared; the optimizer is Adamax. One
folder then answers all of them. After that, each task may be learnt further by itself, from the shared weights: a run
of its own in `tasks/NAME`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stemma.device import takes_device
from stemma.errors import Interrupted, UserError
from stemma.exchange.cards import Card, parts_of
from stemma.exchange.load import open_model
from stemma.exchange.model import Model
from stemma.files import folder_atomically
from stemma.lineage import Recipe
from stemma.network.san import SanHead
from stemma.notes import about
from stemma.schema.layers import flatten, parse_changes
from stemma.stored import read_object, store, store_object
from stemma.tasks import learning, seq2seq
from stemma.tasks.batches import Lesson, batches_of
from stemma.tasks.data.examples import Example
from stemma.tasks.facts import SEVERAL, HeadFacts
from stemma.tasks.finetune import ORIGIN, Length, check_places, with_choices
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import SETS, TOKENIZER, file_of, layout_of, lesson_of, read_lines, stored_example
from stemma.tasks.plan_files import Problems, refuse
from stemma.tasks.prepare import Task, adapted, check_lesson, draw_card, keep, read_sets, tell_lengths
from stemma.tasks.task_plan import Entry, TaskPlan, read_task_plan
from stemma.training.callbacks import takes_callbacks
from stemma.training.checkpoints import latest_checkpoint
from stemma.training.run import MODEL, RECIPE, RESULT, Plan, Reading, read_result, read_run
from stemma.training.working import beginning, working

logger = logging.getLogger(__name__)

SHARED = "shared.json"  # what the tasks reached together, while some are still learnt further
ALONE = "tasks"  # the folder of those
# arXiv:1901.11504, section 4.2, and the defaults of its released code
MT_DNN: dict[str, Any] = {"optimizer": {"kind": "adamax", "epsilon": 1e-6}, "learning_rate": 5e-5, "width": 768,
                          "epochs": 5.0, "warmup": 0.1, "schedule": {"kind": "linear"}, "clip_norm": 1.0}
Sets = dict[str, list[Example]]


@takes_device
@takes_callbacks
def multitask(plan: str | Path, start: str | Path, out: str | Path, *, epochs: float | None = None,
              steps: int | None = None, minutes: float | None = None, seed: int = 0, changes: Sequence[str] = (),
              reading: Reading = Reading(), overwrite: bool = False, device: str | None = None,
              callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Teach a model all tasks of a plan; returns what `--json` prints. The length holds for each stage: for all tasks
    together, and for each by itself. Where all of them are text to text, it learns to write (`seq2seq.py`)."""
    told = read_task_plan(plan)
    if told.pairs:
        return seq2seq.finetune(start, told.data(), out, epochs=epochs, steps=steps, minutes=minutes, seed=seed,
                                changes=changes, reading=reading, overwrite=overwrite, show=show)
    length = Length(epochs, steps, minutes)
    length = Length(told.epochs) if length == Length() else length
    run = Path(out)
    origin = check_places(start, run, overwrite)
    examples = _read_all(told, reading)
    model = open_model(start)
    wanted = _adapted(model, told, changes)
    stated = {*flatten(parse_changes(changes)[0]), *flatten({"training": told.training})}
    cards = _cards(told, examples, model, wanted)
    batch_size = wanted.settings.training.batch_size
    batches = {name: _batches(_lesson(told, card, examples[name], model, seed, batch_size))
               for name, card in cards.items()}
    wanted, budget = length.fit(wanted, sum(batches.values()), stated)
    facts = HeadFacts(SEVERAL, {}, list(changes), {name: card.to_json() for name, card in cards.items()},
                      model.network.vocabulary, batch_size, command=[SEVERAL, str(told.path.absolute())],
                      length={unit: value for unit, value in asdict(length).items() if value is not None},
                      stated=sorted(stated), batches=batches, finetune=told.finetune)
    with folder_atomically(run, overwrite, checksums=False) as place:
        keep(place, model, {name: (card, examples[name]) for name, card in cards.items()})
        Plan(None, [], budget, seed, origin, reading, task=facts.to_json()).write(place)
        store(place / RECIPE, wanted.to_toml(parts_of(cards.values())))
    with beginning(run):
        return work(run, show)


def work(run: Path, show: bool) -> dict[str, Any]:
    """All tasks together, then each by itself if the plan says so; what `stemma resume` calls, too."""
    facts = HeadFacts.of(read_run(run)[1])
    if not facts.finetune:
        return learning.work(run, show)
    if not (run / SHARED).is_file():
        store_object(run / SHARED, learning.learn(run, show))
    result = read_object(run / SHARED, f"delete it, and `stemma resume {run}` scores the tasks again.")
    result["finetuned"] = {name: _alone(run, name, show) for name in facts.cards}
    store_object(run / RESULT, result)
    return result


# --- before anything is trained ---------------------------------------------------------------------------------------


def _read_all(plan: TaskPlan, reading: Reading) -> dict[str, Sets]:
    """The examples of all tasks; what is wrong with any of them is told at once."""
    problems: Problems = []
    found = {}
    for name in plan.tasks:
        try:
            with about(name):
                found[name] = read_sets(_task(plan, name), reading)
        except UserError as error:
            problems += [(f"tasks.{name}", error.message), *((f"  {where}", what) for where, what in error.problems)]
    if problems:
        refuse(plan.path, problems)
    return found


def _task(plan: TaskPlan, name: str) -> Task:
    entry = plan.tasks[name]
    return Task(entry.called, plan.files(name), entry.columns or None, entry.metric, {"weight": entry.weight})


def _adapted(model: Model, plan: TaskPlan, typed: Sequence[str]) -> Recipe:
    """MT-DNN's way of fine-tuning, whatever the model's own is; then what the plan says, then what was typed."""
    own = model.recipe.values["finetuning"]
    removed = [f"finetuning.{key}" for key in ("layer_decay", "layer_decay_top") if key in own]
    shared = model.recipe.with_changes({"remove": removed, "finetuning": MT_DNN}, ORIGIN)
    chosen, rest = with_choices(shared, typed)
    wanted = adapted(replace(model, recipe=chosen))
    wanted = wanted.with_changes({"training": plan.training}, plan.path.name) if plan.training else wanted
    return wanted.typed(rest)


def _cards(plan: TaskPlan, examples: Mapping[str, Sets], model: Model, wanted: Recipe) -> dict[str, Card]:
    return {name: _headed(draw_card(_task(plan, name), examples[name], model, wanted, name), entry)
            for name, entry in plan.tasks.items()}


def _headed(card: Card, entry: Entry) -> Card:
    """With the head that the plan asks for."""
    heads = dict(card.heads)
    if entry.head == "san":
        usual = SanHead(len(card.labels), dropout=getattr(heads[card.name], "dropout", SanHead.dropout))
        heads = {card.name: usual if entry.steps is None else replace(usual, steps=entry.steps)}
    if entry.dropout is not None:
        heads[card.name] = replace(heads[card.name], dropout=entry.dropout)  # type: ignore[type-var]
    return replace(card, heads=heads)


def _lesson(plan: TaskPlan, card: Card, examples: Sets, model: Model, seed: int, batch_size: int) -> Lesson:
    lesson = lesson_of(build_learner(card, layout_of(card, model.needs_tokenizer()), seed), examples, batch_size)
    check_lesson(lesson, card, examples, str(plan.files(card.name)["train"]))
    with about(card.name):
        tell_lengths(lesson, card)
    return lesson


def _batches(lesson: Lesson) -> int:
    """Of an epoch."""
    return len(batches_of(lesson.train, lesson.batch_size, None))


# --- each task by itself ----------------------------------------------------------------------------------------------


def _alone(run: Path, name: str, show: bool) -> dict[str, Any]:
    """What a task reaches when it goes on alone."""
    place = run / ALONE / name
    result = read_result(place)
    if result is None:
        if latest_checkpoint(place) is None:
            _lay_out(run, name, place)
        try:
            with working(place), about(name):
                result = learning.work(place, show)
        except Interrupted:
            raise Interrupted(f"stopped while {name} was learnt by itself, and saved; `stemma resume {run}` goes on "
                              "from there.") from None
    return {key: result[key] for key in ("run", "steps", "seconds", "metrics")}


def _lay_out(run: Path, name: str, place: Path) -> None:
    """A run that starts from what all tasks have learnt, its head included, with this task's examples alone."""
    wanted, plan = read_run(run)
    facts = HeadFacts.of(plan)
    card = facts.read_cards()[name]
    if wanted.settings.training.fresh:  # they have learnt since
        wanted = wanted.with_changes({"training.fresh": 0}, ORIGIN)
    assert facts.length is not None and facts.batches is not None and facts.stated is not None
    wanted, budget = Length(**facts.length).fit(wanted, facts.batches[name], facts.stated)
    alone = replace(facts, kind=card.kind, cards={name: facts.cards[name]})
    with folder_atomically(place, overwrite=True, checksums=False) as folder:
        shutil.copytree(run / TOKENIZER, folder / TOKENIZER)
        for part in SETS:
            if examples := read_lines(run, part, card):
                learning.write_lines(folder / file_of(part, card),
                                     [stored_example(card, example) for example in examples])
        replace(plan, budget=budget, start=str((run / MODEL).absolute()), task=alone.to_json()).write(folder)
        store(folder / RECIPE, wanted.to_toml(parts_of([card])))
