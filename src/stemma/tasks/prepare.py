"""Before a fine-tune begins: examples are read and checked, the task's card is drawn up, and the run is put on disk.

Whatever can be wrong with the data or the settings is told here, before anything is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stemma.device import takes_device
from stemma.errors import UserError
from stemma.exchange.answers import answer_heads, with_pooling
from stemma.exchange.cards import Card
from stemma.exchange.load import load
from stemma.exchange.model import Model
from stemma.files import folder_atomically, write_checksums
from stemma.lineage import Recipe
from stemma.network.heads import HeadSpec
from stemma.schema.layers import flatten, parse_changes
from stemma.stored import store
from stemma.tasks.batches import Lesson, batches_of
from stemma.tasks.class_weights import class_weights
from stemma.tasks.data.checks import check_grades, check_labelled, check_labels
from stemma.tasks.data.datasets import DATASETS, METRICS, kind_of, read_examples
from stemma.tasks.data.examples import Example, balance, labels_of, overlap
from stemma.tasks.features import CHANGES as FEATURES
from stemma.tasks.features import feature_head
from stemma.tasks.finetune import ORIGIN, Length, check_places, gentle, layered, with_choices
from stemma.tasks.gpt_style import PAIR as GPT_PAIR
from stemma.tasks.gpt_style import SINGLE as GPT_SINGLE
from stemma.tasks.gpt_style import card_values, is_asked, prepared
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import SETS, TOKENIZER, file_of, layout_of, lesson_of, stored, work, write_lines
from stemma.tasks.metrics import check_metrics
from stemma.tasks.metrics.entities import scheme_of
from stemma.tasks.scoring import rehearse, right
from stemma.tasks.trials import Trials
from stemma.tasks.trials import work as try_out
from stemma.training.callbacks import takes_callbacks
from stemma.training.pretrain import begin
from stemma.training.run import RECIPE, Plan, Reading

Notice = Callable[[str], None]
BATCH_SIZE = 32
LONGEST_QUESTION = 384  # places of a window of a long document, as BERT's authors have it
SINGLE = "task"  # the name of a task that is alone in its run
SHOWN = 10  # classes whose share is told


@dataclass(frozen=True)
class Task:
    """A task as the user asks for it."""

    name: str  # classify, pair, ... or a data set's name
    files: Mapping[str, str | Path]  # train, dev, and perhaps test
    columns: Mapping[str, str] | None = None  # which of the file's columns each of ours is
    metrics: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)  # of the learner: others, balance
    features: str | None = None  # which layers are mixed, where the network is to stay as it is
    style: str | None = None  # how a task is put to a language model: "gpt", or "plain"; None: as its recipe has it

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    def options(self) -> dict[str, Any]:
        """What was typed, to be typed again."""
        renamed = ",".join(f"{ours}={theirs}" for ours, theirs in (self.columns or {}).items())
        return {**{part: str(path) for part, path in self.files.items()}, "metric": list(self.metrics),
                **({"columns": renamed} if renamed else {}),
                **({"class-weights": self.values["balance"]} if "balance" in self.values else {}),
                **({"features": True, "layers": self.features} if self.features else {}),
                **({"style": self.style} if self.style else {})}


@takes_device
@takes_callbacks
def finetune(task: Task, start: str | Path, out: str | Path, *, epochs: float | None = None, steps: int | None = None,
             minutes: float | None = None, seed: int = 0, changes: Sequence[str] = (), reading: Reading = Reading(),
             trials: Trials | None = None, overwrite: bool = False, device: str | None = None,
             callbacks: Sequence[Any] = (), show: bool = False, notice: Notice = lambda text: None) -> dict[str, Any]:
    """Teach a model a task from examples, several times over where there are `trials`; returns what `--json` prints.
    `callbacks` hear of every step (`stemma.Callback`)."""
    length = Length(epochs, steps, minutes)
    run = Path(out)
    origin = check_places(start, run, overwrite)
    examples = read_sets(task, reading, notice)
    model = load(start)
    for told in model.notices:
        notice(told)
    if task.features and task.style == "gpt":
        raise UserError("--features and --style gpt exclude each other: the new tokens must be learnt.")
    like_gpt = not task.features and is_asked(model, task.kind, task.style)
    model = prepared(model) if like_gpt else model
    typed = set(flatten(parse_changes(changes)[0]))
    wanted = adapted(model, changes, FEATURES if task.features else {})
    for key in ("training.learning_rate", "finetuning.learning_rate"):
        if trials and trials.rates and key in typed:
            raise UserError(f"--rates and {key} exclude each other; give one of them.")
    card = draw_card(task, examples, model, wanted, SINGLE, like_gpt)
    learner = build_learner(card, layout_of(card, model.needs_tokenizer()), seed)
    lesson = lesson_of(learner, examples, wanted.settings.training.batch_size)
    check_lesson(lesson, card, examples, str(task.files["train"]))
    tell_lengths(lesson, card, notice)
    wanted, budget = length.fit(wanted, len(batches_of(lesson.train, lesson.batch_size, None)), typed)
    facts = {"kind": card.kind, "name": task.name, "options": task.options(), "cards": {SINGLE: card.to_json()},
             "changes": list(changes), "vocabulary": vocabulary_of(model), "batch_size": lesson.batch_size}
    if trials:
        facts |= {"trials": asdict(trials), "options": task.options() | trials.options()}
    with folder_atomically(run, overwrite, checksums=False) as place:
        keep(place, model, {SINGLE: (card, examples)})
        Plan(None, [], budget, seed, origin, reading, task=facts).write(place)
        store(place / RECIPE, wanted.to_toml())
    return begin(run, show, notice, work=try_out if trials else work)


def keep(place: Path, model: Model, tasks: Mapping[str, tuple[Card, Mapping[str, Sequence[Example]]]]) -> None:
    """Everything that training will need, so that the run stands on its own."""
    model.needs_tokenizer().save(place / TOKENIZER)
    write_checksums(place / TOKENIZER)
    for card, examples in tasks.values():
        for part, chosen in examples.items():
            if chosen:
                write_lines(place / file_of(part, card), [stored(example) for example in chosen])


def adapted(model: Model, typed: Sequence[str] = (), brought: Mapping[str, Any] | None = None) -> Recipe:
    """The model's recipe, to be trained on examples as its [finetuning] says, then with what the task brought, and last
    with what was typed."""
    chosen, rest = with_choices(model.recipe, typed)
    settings = chosen.settings
    changes = {"tokenizer.vocab_size": vocabulary_of(model), "training.batch_size": BATCH_SIZE, **gentle(settings),
               **(brought or {})}
    frozen = {**changes, **flatten(parse_changes(rest)[0])}.get("training.frozen")
    if frozen not in ("all", settings.network.all_layers + 1):  # with no layer left to learn, there is nothing to decay
        changes |= layered(settings)
    return chosen.with_changes(changes, ORIGIN).typed(rest)


def vocabulary_of(model: Model) -> int:
    """How many tokens there are to be: those that the network has, and those that came with the task."""
    return max(model.network.vocabulary, model.needs_tokenizer().vocab_size)


# --- data -------------------------------------------------------------------------------------------------------------


def read_sets(task: Task, reading: Reading, notice: Notice) -> dict[str, list[Example]]:
    """The examples of each set, checked; what people should know of them is told."""
    examples = {part: read_examples(task.name, task.files[part], columns=task.columns, encoding=reading.encoding,
                                    errors=reading.errors, notice=notice) if part in task.files else []
                for part in SETS}
    for part in ("train", "dev"):
        check_labelled(examples[part], str(task.files.get(part)))
    if task.kind == "rank":
        for part in SETS:
            check_grades(examples[part], str(task.files.get(part)))
    if task.kind in ("classify", "pair", "tag"):
        labels = labels_for(task, examples["train"])
        if len(labels) < 2:
            raise UserError(f'{task.files["train"]} has one label only, "{labels[0]}"; there is nothing to tell apart.')
        for part in ("dev", "test"):
            check_labels(labels, examples[part], str(task.files.get(part)))
    for part in ("dev", "test"):
        if examples[part] and (share := overlap(examples["train"], examples[part])):
            notice(f"{100 * share:.3g}% of the examples of {task.files[part]} are among those to train on, so its "
                   "scores will partly say how well they are remembered.")
    if told := describe_balance(examples["train"]):
        notice(told)
    return examples


def labels_for(task: Task, train: Sequence[Example]) -> list[str]:
    fixed = DATASETS[task.name].labels if task.name in DATASETS else None
    return list(fixed) if fixed else labels_of(train)


def describe_balance(train: Sequence[Example]) -> str | None:
    counts = balance(train)
    if not counts or all(_is_number(label) for label in counts) and len(counts) > SHOWN:
        return None  # numbers to regress to are no classes
    total = sum(counts.values())
    shown = [f"{label} {count / total:.1%}" for label, count in list(counts.items())[:SHOWN]]
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return f"{len(train):,} examples to train on: {', '.join(shown)}{more}."


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def draw_card(task: Task, examples: Mapping[str, Sequence[Example]], model: Model, wanted: Recipe, name: str,
              like_gpt: bool = False) -> Card:
    """What the model will answer with, and by which rules its inputs are laid out."""
    kind, train = task.kind, examples["train"]
    if model.decodes:
        raise UserError(f"a {model.recipe.title} model answers by writing, with its decoder; teach it this task as "
                        "text, with `stemma finetune seq2seq`.")
    metrics = tuple(task.metrics) or (DATASETS[task.name].metrics if task.name in DATASETS else METRICS[kind])
    labels = labels_for(task, train) if kind in ("classify", "pair", "tag") else []
    values = dict(task.values)
    if task.name in DATASETS:
        values["dataset"] = task.name
    if kind == "tag":
        values["scheme"] = scheme_of([right(kind, example) for example in train])
        if values["scheme"] == "plain" and not task.metrics:  # such as parts of speech: there are no entities to find
            metrics = ("accuracy",)
    check_metrics(kind, metrics)
    if kind == "qa":
        values["style"] = DATASETS[task.name].style if task.name in DATASETS else None
        values["silence"] = any(getattr(example, "impossible", False) for example in train)
        chosen = wanted.settings.finetuning
        values |= {"stride": chosen.stride} if chosen.overlap is None else {"overlap": chosen.overlap}
    if labels:
        counts = balance(train)
        values["counts"] = [counts.get(label, 0) for label in labels]
    if "balance" in values:
        values["balance"] = class_weights(values["balance"], kind, labels, values.get("counts", []))
    if kind == "regress":
        values["spread"] = float(np.std([right(kind, example) for example in train]))
    corpus = wanted.settings.corpus
    single, pair = (GPT_SINGLE, GPT_PAIR) if like_gpt else (corpus.single, corpus.pair)
    values |= card_values(task.name, train) if like_gpt else {}
    longest = window(wanted, LONGEST_QUESTION if kind == "qa" else None)
    heads: Mapping[str, HeadSpec] = answer_heads(model, kind, len(labels) or 1, name) if task.features is None else \
        {name: feature_head(wanted.settings.network, kind, len(labels), task.features)}
    heads = with_pooling(heads, name, wanted.settings.finetuning.pooling)
    return Card(name, kind, tuple(labels), heads, single, pair, longest, metrics, values)


def window(wanted: Recipe, usual: int | None) -> int:
    """Places of a row: what was typed, or as many as the model reads."""
    settings, typed = wanted.settings, wanted.origin.get("corpus.sequence_length") == "command line"
    most = settings.network.longest or settings.corpus.sequence_length
    if typed:
        return settings.corpus.sequence_length
    return min(most, usual) if usual else most


def check_lesson(lesson: Lesson, card: Card, examples: Mapping[str, Sequence[Example]], name: str) -> None:
    """What the examples cannot teach, or the metrics not measure, is told now and not after the training."""
    if not lesson.train:
        raise UserError(f"{name} has no query with both a good candidate and another, so it teaches no order; give "
                        "such queries.")
    if card.kind == "regress" and not card.values["spread"]:
        raise UserError(f"{name} has the same number on every row; there is nothing to learn.")
    for part in ("dev", "test"):
        rehearse(card, examples[part])


def tell_lengths(lesson: Lesson, card: Card, notice: Notice) -> None:
    if lesson.learner.layout.cut:
        notice(f"{lesson.learner.layout.cut:,} texts are longer than {card.longest} tokens and are cut there.")
