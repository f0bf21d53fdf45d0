"""Before a fine-tune begins: examples are read and checked, the task's card is drawn up, and the run is put on disk.

Whatever can be wrong with the data or the settings is told here, before anything is trained.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stemma.corpus.sides import ENCODER
from stemma.device import takes_device
from stemma.errors import UserError
from stemma.exchange.answers import answer_heads, answering_stack, with_pooling
from stemma.exchange.cards import Card, parts_of, stack_of
from stemma.exchange.layouts import templates_of
from stemma.exchange.load import open_model
from stemma.exchange.model import Model
from stemma.files import folder_atomically, write_checksums
from stemma.lineage import Recipe
from stemma.network.heads import HeadSpec
from stemma.schema.corpus import extended
from stemma.schema.layers import flatten, parse_changes
from stemma.schema.network import NetworkSettings
from stemma.schema.task_values import values_of
from stemma.stored import store
from stemma.tasks.batches import Lesson, batches_of
from stemma.tasks.class_weights import class_weights
from stemma.tasks.data.checks import check_labelled, check_labels
from stemma.tasks.data.datasets import DATASETS, kind_of, read_examples
from stemma.tasks.data.examples import Example, balance, labels_of, overlap
from stemma.tasks.facts import HeadFacts
from stemma.tasks.features import CHANGES as FEATURES
from stemma.tasks.features import feature_head
from stemma.tasks.finetune import ORIGIN, Length, check_places, gentle, layered, with_choices
from stemma.tasks.gpt_style import PAIR as GPT_PAIR
from stemma.tasks.gpt_style import SINGLE as GPT_SINGLE
from stemma.tasks.gpt_style import card_values, is_asked, prepared
from stemma.tasks.kinds import head_task
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import SETS, TOKENIZER, file_of, layout_of, lesson_of, stored_example, work, write_lines
from stemma.tasks.metrics import check_metrics
from stemma.tasks.scoring import rehearse
from stemma.tasks.trials import Trials
from stemma.tasks.trials import work as try_out
from stemma.training.callbacks import takes_callbacks
from stemma.training.run import RECIPE, Plan, Reading
from stemma.training.working import beginning

logger = logging.getLogger(__name__)

BATCH_SIZE = 32
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
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Teach a model a task from examples, several times over where there are `trials`; returns what `--json` prints.
    `callbacks` hear of every step (`stemma.Callback`)."""
    length = Length(epochs, steps, minutes)
    run = Path(out)
    origin = check_places(start, run, overwrite)
    examples = read_sets(task, reading)
    model = open_model(start)
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
    tell_lengths(lesson, card)
    if model.decodes and stack_of(card) == ENCODER:
        wanted = encoder_alone(wanted)
    wanted, budget = length.fit(wanted, len(batches_of(lesson.train, lesson.batch_size, None)), typed)
    facts = HeadFacts(card.kind, task.options() | (trials.options() if trials else {}), list(changes),
                      {SINGLE: card.to_json()}, vocabulary_of(model), lesson.batch_size, task.name,
                      asdict(trials) if trials else None)
    with folder_atomically(run, overwrite, checksums=False) as place:
        keep(place, model, {SINGLE: (card, examples)})
        Plan(None, [], budget, seed, origin, reading, task=facts.to_json()).write(place)
        store(place / RECIPE, wanted.to_toml(parts_of([card])))
    with beginning(run):
        return try_out(run, show) if trials else work(run, show)


def keep(place: Path, model: Model, tasks: Mapping[str, tuple[Card, Mapping[str, Sequence[Example]]]]) -> None:
    """Everything that training will need, so that the run stands on its own."""
    model.needs_tokenizer().save(place / TOKENIZER)
    write_checksums(place / TOKENIZER)
    for card, examples in tasks.values():
        for part, chosen in examples.items():
            if chosen:
                write_lines(place / file_of(part, card), [stored_example(card, example) for example in chosen])


def adapted(model: Model, typed: Sequence[str] = (), brought: Mapping[str, object] | None = None) -> Recipe:
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


def encoder_alone(wanted: Recipe) -> Recipe:
    """The recipe of the encoder of an encoder-decoder, for a task that only reads: nothing writes any more."""
    gone = [f"objective.{name}" for name in wanted.settings.objective]
    return wanted.with_changes({"remove": ["network.decoder", *gone]}, ORIGIN)


def vocabulary_of(model: Model) -> int:
    """How many tokens there are to be: those that the network has, and those that came with the task."""
    return max(model.network.vocabulary, model.needs_tokenizer().vocab_size)


# --- data -------------------------------------------------------------------------------------------------------------


def read_sets(task: Task, reading: Reading) -> dict[str, list[Example]]:
    """The examples of each set, checked; what people should know of them is told."""
    examples = {part: read_examples(task.name, task.files[part], columns=task.columns, encoding=reading.encoding,
                                    errors=reading.errors) if part in task.files else []
                for part in SETS}
    for part in ("train", "dev"):
        check_labelled(examples[part], str(task.files.get(part)))
    kind = head_task(task.kind)
    for part in SETS:
        kind.check(examples[part], str(task.files.get(part)))
    if kind.has_classes:
        labels = labels_for(task, examples["train"])
        if len(labels) < 2:
            raise UserError(f'{task.files["train"]} has one label only, "{labels[0]}"; there is nothing to tell apart.')
        for part in ("dev", "test"):
            check_labels(labels, examples[part], str(task.files.get(part)))
    for part in ("dev", "test"):
        if examples[part] and (share := overlap(examples["train"], examples[part])):
            logger.warning(
                f"{100 * share:.3g}% of the examples of {task.files[part]} are among those to train on, so its "
                "scores will partly say how well they are remembered.")
    if told := describe_balance(examples["train"]):
        logger.info(told)
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
    kind, train = head_task(task.kind), examples["train"]
    stack = answering_stack(model, task.kind, wanted.settings.finetuning.stack)
    dataset = DATASETS.get(task.name)
    metrics = tuple(task.metrics) or (kind.usual if dataset is None else dataset.metrics)
    labels = labels_for(task, train) if kind.has_classes else []
    values = dict(task.values)
    if dataset is not None:
        values["dataset"] = task.name
    values |= kind.values(train, dataset, wanted.settings.finetuning)
    if not task.metrics:
        metrics = kind.suited(metrics, values_of(task.kind, values))
    check_metrics(task.kind, metrics)
    if labels:
        counts = balance(train)
        values["counts"] = [counts.get(label, 0) for label in labels]
    if "balance" in values:
        values["balance"] = class_weights(values["balance"], task.kind, labels, values.get("counts", []))
    if model.decodes:
        values["stack"] = stack
    single, pair = (GPT_SINGLE, GPT_PAIR) if like_gpt else templates_of(wanted.settings.corpus, model.tokenizer)
    values |= card_values(task.name, train) if like_gpt else {}
    longest = window(wanted, kind.window)
    network = wanted.settings.network
    heads: Mapping[str, HeadSpec] = {name: feature_head(network, task.kind, len(labels), task.features, stack)} \
        if task.features is not None else answer_heads(model, task.kind, len(labels) or 1, name, stack)
    heads = with_pooling(heads, name, wanted.settings.finetuning.pooling)
    more = tuple(extended(pair, texts, segments_of(network)) for texts in range(3, kind.texts + 1))
    return Card(name, task.kind, tuple(labels), heads, single, pair, longest, metrics,
                values_of(task.kind, values), more)


def segments_of(network: NetworkSettings) -> int | None:
    """How many segments a row may have; None: any number, since only the same and another are told apart."""
    return None if network.attention.segments else network.embedding.segments


def window(wanted: Recipe, usual: int | None) -> int:
    """Places of a row: what was typed, or as many as the model reads."""
    settings, typed = wanted.settings, wanted.origin.get("corpus.sequence_length") == "command line"
    most = settings.network.longest or settings.corpus.sequence_length
    if typed:
        return settings.corpus.sequence_length
    return min(most, usual) if usual else most


def check_lesson(lesson: Lesson, card: Card, examples: Mapping[str, Sequence[Example]], name: str) -> None:
    """What the examples cannot teach, or the metrics not measure, is told now and not after the training."""
    head_task(card.kind).check_lesson(lesson.train, card.values, name)
    if not lesson.train:
        raise UserError(f"{name} gives no example to learn from; look at what it holds.")
    for part in ("dev", "test"):
        rehearse(card, examples[part])


def tell_lengths(lesson: Lesson, card: Card) -> None:
    if lesson.learner.layout.cut:
        logger.warning(f"{lesson.learner.layout.cut:,} texts are longer than {card.longest} tokens and are cut there.")
