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

from stemma.errors import UserError, counted
from stemma.exchange.cards import Card
from stemma.exchange.load import load
from stemma.exchange.model import Model
from stemma.exchange.save import write_model
from stemma.files import folder_atomically
from stemma.json_files import damage
from stemma.network.network import Network
from stemma.stored import is_listed, store, store_object
from stemma.stored import read_lines as stored_lines
from stemma.tasks.batches import Lesson, Lessons
from stemma.tasks.data.examples import Example
from stemma.tasks.facts import SEVERAL, HeadFacts
from stemma.tasks.judging import answers_of, judge_of
from stemma.tasks.kinds import head_task
from stemma.tasks.layout import RowLayout
from stemma.tasks.learner import Learner
from stemma.tasks.learners import build_learner
from stemma.tasks.scoring import measure
from stemma.text.tokenizer import Tokenizer
from stemma.training.checkpoints import latest_checkpoint
from stemma.training.loop import Loop
from stemma.training.run import MODEL, RESULT, read_run
from stemma.training.transplant import transplant

logger = logging.getLogger(__name__)

SETS = ("train", "dev", "test")
TOKENIZER = "tokenizer"


def work(run: Path, show: bool) -> dict[str, Any]:
    """A run from its first step to its last line; what `stemma resume` calls, too."""
    result = learn(run, show)
    store_object(run / RESULT, result)
    return result


def learn(run: Path, show: bool) -> dict[str, Any]:
    """Train, score and save."""
    wanted, plan = read_run(run)
    facts = HeadFacts.of(plan)
    tokenizer, cards = Tokenizer.load(run / TOKENIZER), facts.read_cards()
    torch.manual_seed(plan.seed)
    network = Network(wanted.settings.network, facts.vocabulary, heads_of(cards))
    if latest_checkpoint(run) is None:
        start_from(plan.start or "", network, cards, wanted.settings.training.fresh)
        network.start_inputs(tokenizer, network.state_dict())  # the task may have brought tokens of its own
    model = Model(wanted, tokenizer, network, cards=cards)
    learners = {name: build_learner(card, layout_of(card, tokenizer), plan.seed) for name, card in cards.items()}
    examples = {name: {part: read_lines(run, part, card) for part in SETS} for name, card in cards.items()}
    lessons = [lesson_of(learners[name], examples[name], facts.batch_size) for name, card in cards.items()]
    supply = Lessons(model, lessons, plan.seed, max(card.longest for card in cards.values()))
    loop = Loop(run, wanted, supply, network, plan.budget, plan.seed, plan.tensorboard, show,
                judge_of(model, cards, learners, examples))
    if show:
        logger.info(f"{wanted.label} · {network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{counted(sum(len(lesson.train) for lesson in lessons), 'example')} · "
                    f"{str(loop.precision).removeprefix('torch.')} on {counted(loop.threads, 'core')}")
    result = {"run": str(run), "task": facts.kind, "model": plan.start, **loop.train()}
    network.eval()
    metrics: dict[str, Any] = {}
    for name, card in cards.items():
        found = scored(run, model, card, learners[name], examples[name])
        for part, values in found.items():
            if facts.kind == SEVERAL:
                metrics.setdefault(part, {"tasks": {}})["tasks"][name] = values
            else:
                metrics[part] = values
    with folder_atomically(run / MODEL, overwrite=True) as place:
        write_model(model, place)
    seen = result["steps"] / supply.steps_in_epoch() * sum(len(lesson.train) for lesson in lessons)
    result |= {"metrics": metrics, "examples_per_second": seen / max(result["seconds"], 1e-9)}
    return result


def heads_of(cards: Mapping[str, Card]) -> dict[str, Any]:
    return {name: spec for card in cards.values() for name, spec in card.heads.items()}


def layout_of(card: Card, tokenizer: Tokenizer) -> RowLayout:
    return RowLayout(tokenizer, card.single, card.pair, card.longest, card.more)


def start_from(where: str, network: Network, cards: Mapping[str, Card], fresh: int = 0) -> None:
    """Fill the network with a model's weights. Heads that it does not have start at random, and so do those that it has
    for another task of this name, and the `fresh` highest layers."""
    model = load(where)
    other = [name for name, card in cards.items() if not _is_known_as(card, model.cards.get(name))]
    # tokens that are new with the task start at random
    found = transplant(model.network.state_dict(), network, fresh=fresh, without_heads=other, grow=True)
    heads = {name for group in network.groups() if group.name.startswith("head.") for name in group.parameters}
    if bodily := sorted(set(found.missing) - heads):
        raise UserError(f"{where} lacks weights of the network itself ({bodily[0]}); it cannot be fine-tuned.")


def _is_known_as(card: Card, before: Card | None) -> bool:
    """Whether a model that answered `before` has learnt to answer this."""
    return before is not None and (before.kind, before.labels, dict(before.heads)) == (card.kind, card.labels,
                                                                                       dict(card.heads))


def lesson_of(learner: Learner, examples: Mapping[str, Sequence[Example]], batch_size: int) -> Lesson:
    return Lesson(learner, learner.lessons(examples["train"]), learner.lessons(examples["dev"]), batch_size)


def scored(run: Path, model: Model, card: Card, learner: Learner,
           examples: Mapping[str, Sequence[Example]]) -> dict[str, dict[str, Any]]:
    """Metrics by set; the predictions go beside their examples."""
    kind, found = head_task(card.kind), {}
    for part in ("dev", "test"):
        if not examples[part]:
            continue
        predictions = predict(model, learner, examples[part])
        if part == "dev" and any(example.is_known for example in examples[part]):
            card = model.cards[card.name] = replace(card, values=kind.tuned(card, examples[part], predictions))
        predictions = kind.settled(card.values, predictions)
        write_lines(run / file_of(part, card), predicted_lines(card, examples[part], predictions))
        found[part] = measure(card, examples[part], predictions)
    return found


def predict(model: Model, learner: Learner, examples: Sequence[Example]) -> list[Any]:
    """What the model says of each example."""
    items = learner.items(examples)
    return learner.decide(items, answers_of(model, learner, items), examples)


# --- examples on disk -------------------------------------------------------------------------------------------------


def file_of(part: str, card: Card) -> str:
    return f"{part}.jsonl" if card.name == "task" else f"{part}-{card.name}.jsonl"


def stored_example(card: Card, example: Example) -> dict[str, Any]:
    return head_task(card.kind).store(example)


def predicted_lines(card: Card, examples: Sequence[Example], predictions: Sequence[object]) -> list[dict[str, Any]]:
    """Examples as they are stored, each with what was predicted."""
    return [stored_example(card, example) | {"prediction": said}
            for example, said in zip(examples, predictions, strict=True)]


def write_lines(file: Path, lines: Sequence[dict[str, object]]) -> None:
    store(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_lines(run: Path, part: str, card: Card) -> list[Example]:
    file = run / file_of(part, card)
    advice = "bring it back, or start the fine-tune again in another folder."
    if part != "train" and not file.is_file() and not is_listed(file):
        return []
    kind = head_task(card.kind)
    with damage(file, advice):
        return [kind.restore(line) for line in stored_lines(file, advice)]
