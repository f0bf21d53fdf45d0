"""Fine-tune a model to write one text from another: translate, summarise, ask a question about it.

The pairs become a corpus in the run's own folder, with the model's tokenizer and the dev pairs held out. The recipe is
the model's, with the one objective that teaches pairs in the way this model writes:

- an encoder-decoder learns `translation`, whatever it was pre-trained to write;
- UniLM fills in its target, of which 70% is masked (arXiv:1905.03197, as its released commands have it), and so does
  an encoder that has only ever filled gaps: how to look at a source and at what is written it learns from the pairs;
- a prefix or causal language model guesses the target token by token, after the source;
- a permuted one (XLNet) does so through its second stream, with the source as the context of all orders.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.device import takes_device
from stemma.errors import UserError
from stemma.exchange.load import open_model
from stemma.exchange.model import Model
from stemma.files import folder_atomically
from stemma.generation.options import TranslateOptions
from stemma.generation.translate import translate
from stemma.generation.ways import way_of
from stemma.lineage import Recipe
from stemma.notes import quietly
from stemma.objectives import build_objectives, check_needs
from stemma.schema.corpus import Mixture
from stemma.schema.layers import flatten, parse_changes
from stemma.schema.task import Way
from stemma.stored import is_listed, read_lines, store, store_object
from stemma.tasks.facts import WritingFacts
from stemma.tasks.finetune import ORIGIN, Length, check_places, gentle, layered, with_choices
from stemma.tasks.kinds.seq2seq import KIND
from stemma.tasks.mixture import Data
from stemma.tasks.scores import summary_scores, translation_scores
from stemma.text.parallel import Pair, PairSource, read_pairs
from stemma.text.streams import name_of
from stemma.text.words import CJK_RUN
from stemma.training.callbacks import takes_callbacks
from stemma.training.pretrain import open_training
from stemma.training.run import RECIPE, RESULT, Plan, Reading, read_result
from stemma.training.supply import Epoch, Supply
from stemma.training.working import beginning, finished, working

logger = logging.getLogger(__name__)

# Where the source ends is to be seen, where to end is to be learned. A permuted model's two texts are one segment: what
# a cache has kept of either is.
LAYOUTS: dict[Way | None, str] = {"prefix": "A end B end", "next": "A end B end",
                                  "permuted": "A separator B separator"}
ROWS = 16  # of the longest pairs make a batch, and more of shorter ones
SMOOTHING = 0.1
HELD_OUT = ("dev", "test")


@takes_device
@takes_callbacks
def finetune(start: str | Path, data: Data, out: str | Path, *, epochs: float | None = None, steps: int | None = None,
             minutes: float | None = None, beams: int = 4, seed: int = 0, changes: Sequence[str] = (),
             reading: Reading = Reading(), overwrite: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Train a model on pairs and score what it writes for the held-out ones; returns what `--json` prints."""
    run, length = Path(out), Length(epochs, steps, minutes)
    length = Length(data.epochs) if length == Length() else length
    origin = check_places(start, run, overwrite)
    TranslateOptions(beams=beams)
    _scores([""], [[""]])  # a library that is missing is named now, not after an hour
    model = open_model(start)
    chosen, rest = with_choices(model.recipe, changes)
    wanted = adapted(replace(model, recipe=chosen), data.mixture)
    wanted = wanted.with_changes({"training": data.training}, data.origin) if data.training else wanted
    wanted = wanted.typed(rest)
    typed = {*flatten(parse_changes(changes)[0]), *flatten({"training": data.training})}
    with folder_atomically(run, overwrite, checksums=False) as place:
        corpus = _build(data, model, place, reading)
        _hold_out(data, place, reading)
        wanted, epoch = _fitted(wanted, corpus, data, seed, typed)
        wanted, budget = length.fit(wanted, epoch.steps, typed)
        facts = WritingFacts(KIND, {**(data.options or {}), "beams": beams}, list(changes), epoch.pairs, epoch.steps,
                             _longest(corpus, wanted), {task.name: task.metric for task in data.tasks})
        Plan("corpus", [], budget, seed, origin, reading, corpus.fingerprint, task=facts.to_json()).write(place)
        store(place / RECIPE, wanted.to_toml())
    with beginning(run):
        return work(run, show)


def resume(run: Path, show: bool) -> dict[str, Any]:
    """Go on with such a run. Damage to what it is to be judged by is told now, not when training is over."""
    if read_result(run) is None:
        _held_out(run)
    if (known := finished(run)) is not None:
        return known
    with working(run):
        return work(run, show)


def work(run: Path, show: bool) -> dict[str, Any]:
    """Train and score; what is reported goes to disk when all of it is known."""
    training = open_training(run, show)
    model, result = training.save(training.loop.train())
    result |= score(run, training.plan, model, result)
    store_object(run / RESULT, result)
    return result


def adapted(model: Model, mixture: Mixture | None = None) -> Recipe:
    """The model's recipe with the objective that teaches it pairs, trained gently."""
    recipe, settings = model.recipe, model.recipe.settings
    name, objective = _objective(model)
    changes: dict[str, Any] = {"corpus.packing": "parallel", "tokenizer.vocab_size": model.network.vocabulary,
                               **{f"objective.{name}.{key}": value for key, value in objective.items()}}
    if pair := LAYOUTS.get(way_of(recipe)):
        changes["corpus.pair"] = pair
    if mixture is not None:
        changes["corpus.mixture"] = mixture.model_dump(exclude_none=True)
    gone = [f"objective.{other}" for other in settings.objective if other != name]
    return recipe.with_changes({**changes, **gentle(settings, gone), **layered(settings)}, ORIGIN)


def _objective(model: Model) -> tuple[str, dict[str, Any]]:
    """The objective that teaches pairs in the way this model writes: its name, and its keys."""
    recipe = model.recipe
    way = way_of(recipe)
    able = {name: (task.writing, task.kind, task.for_pairs) for name, task in recipe.settings.objective.items()
            if task.for_pairs is not None}
    if way == "decoder":
        # who has learned to write from a source goes on in the same manner; the first to say how counts
        stated = [keys for written, _, keys in able.values() if written is not None and written.way == way]
        merged = {key: value for keys in reversed(stated) for key, value in keys.items()}
        return merged["kind"], {"smoothing": SMOOTHING, **merged}
    if way is None and (model.judges or recipe.settings.network.generator is not None):
        raise UserError(f"{recipe.label} judges tokens and guesses none, so it cannot learn to write; its generator "
                        "can: give the folder generator/ below the model's.")
    for name, (written, kind, keys) in able.items():
        fits = written is None if way is None else written is not None and (written.way == "cloze") == (way == "cloze")
        if fits:
            return name, {"kind": kind, **keys, "packing": "parallel", "start_step": 0}
    raise UserError(f"{recipe.label} has learned no objective that guesses tokens, so it cannot learn to write; start "
                    "from the model as it was pre-trained.")


# --- the pairs --------------------------------------------------------------------------------------------------------


def _build(data: Data, model: Model, place: Path, reading: Reading) -> Corpus:
    train = [source for task in data.tasks for source in task.train]
    dev = [source for task in data.tasks for source in task.dev]
    build_corpus([], model.needs_tokenizer(), place / "corpus", pairs=[*train, *dev],
                 held_out={source.name for source in dev}, **reading.paired())
    return Corpus.open(place / "corpus")


def _pairs(sources: Sequence[PairSource], reading: Reading) -> Iterator[tuple[PairSource, Pair]]:
    for source in sources:
        for pair in quietly(read_pairs([source], **reading.paired())):
            yield source, pair


def _hold_out(data: Data, place: Path, reading: Reading) -> None:
    """Keep what is written for the sake of scores, with every target that would be right."""
    held: set[tuple[str, str]] = set()
    for name in HELD_OUT:
        lines = []
        for task in data.tasks:
            for source, pair in _pairs(getattr(task, name), reading):
                lines.append({"task": task.name, "where": f"{name_of(Path(source.path))}, line {pair.line}",
                              "source": pair.source, "references": [pair.target, *pair.others]})
                held.add((pair.source, pair.target))
        if lines:
            _write_lines(place / f"{name}.jsonl", lines)
    known = held & {(pair.source, pair.target) for task in data.tasks for _, pair in _pairs(task.train, reading)
                    if (pair.source, pair.target) in held}
    if known:
        logger.warning(
            f"{len(known):,} of {len(held):,} held-out pairs are among those to train on, so scores will say how "
            "well they are remembered; give others with --dev and --test.")


def _fitted(wanted: Recipe, corpus: Corpus, data: Data, seed: int, typed: set[str]) -> tuple[Recipe, Epoch]:
    """Batches of as many places as some of the longest pairs fill; pairs longer than the model's window are told."""
    check_needs(wanted, corpus)
    length = wanted.settings.corpus.sequence_length
    epoch = Supply(wanted, corpus, build_objectives(wanted), seed).epoch()
    if not epoch.pairs:
        source, pair = next(_pairs(data.tasks[0].train, Reading(empty="skip")))
        raise UserError(f"every pair to train on is longer than the {length:,} tokens that {wanted.label} reads, "
                        f"beginning with {name_of(Path(source.path))}, line {pair.line}; shorten them, or set "
                        "corpus.sequence_length higher if the network has more places.")
    if epoch.left_out:
        logger.warning(f"{epoch.left_out:,} of {epoch.pairs + epoch.left_out:,} pairs to train on are longer than the "
                       f"{length:,} tokens that {wanted.label} reads, and are left out.")
    if "training.batch_size" not in typed:
        wanted = wanted.with_changes({"training.batch_size": max(1, round(ROWS * epoch.longest / length))}, ORIGIN)
    supply = Supply(wanted, corpus, build_objectives(wanted), seed)
    if supply.rates is not None:
        rates = zip(data.tasks, supply.rates, strict=False)  # behind those of the tasks stand the held-out groups'
        logger.info(
            f"tasks are drawn at these rates: {', '.join(f'{task.name} {rate:.1%}' for task, rate in rates)}.")
    return wanted, supply.epoch()


def _longest(corpus: Corpus, wanted: Recipe) -> int:
    """Tokens of the longest target that is learned, and its end: nothing longer need be written to be scored."""
    count = sum(group["documents"] for group in corpus.manifest["groups"] if not group.get("held_out"))
    targets = np.diff(corpus.sentences[:2 * count + 1])[1::2]  # what is held out stands behind
    return min(int(targets.max()), wanted.settings.corpus.sequence_length) + 1


# --- scores -----------------------------------------------------------------------------------------------------------


def _held_out(run: Path) -> dict[str, list[dict[str, Any]]]:
    files = {name: run / f"{name}.jsonl" for name in HELD_OUT}
    return {name: read_lines(file, "bring it back, or start the fine-tune again in another folder.")
            for name, file in files.items() if file.is_file() or is_listed(file)}


def score(run: Path, plan: Plan, model: Model, result: dict[str, Any]) -> dict[str, Any]:
    """What the model writes for the held-out sources, kept beside them in dev.jsonl and test.jsonl, and how good it
    is."""
    facts = WritingFacts.of(plan)
    metrics: dict[str, Any] = {}
    for name, lines in _held_out(run).items():
        logger.info(f"writing from {len(lines):,} sources of {name}, to be scored")
        made = translate(model, [line["source"] for line in lines], where=[line["where"] for line in lines],
                         beams=facts.options["beams"], max_length_ratio=0, max_extra=facts.longest, crop=True)
        _write_lines(run / f"{name}.jsonl", [line | {"text": one.text} for line, one in zip(lines, made, strict=True)])
        found = {called: _scored([(one.text, line["references"]) for line, one in zip(lines, made, strict=True)
                                  if line["task"] == called]) for called in dict.fromkeys(x["task"] for x in lines)}
        loss = {"loss": result["validation_loss"]} if name == "dev" else {}
        metrics[name] = loss | (next(iter(found.values())) if len(facts.metrics) == 1
                                else _together(found, facts.metrics))
    seen = result["steps"] / facts.steps_in_epoch * facts.pairs
    return {"task": facts.kind, "model": plan.start, "metrics": metrics,
            "examples_per_second": seen / max(result["seconds"], 1e-9)}


def _together(found: dict[str, dict[str, Any]], metrics: Mapping[str, str]) -> dict[str, Any]:
    """The scores of each task, and the mean of those that count."""
    counting = [scores[metrics[name]] for name, scores in found.items()]
    return {"mean": sum(counting) / len(counting), "tasks": found}


def _scored(written: Sequence[tuple[str, list[str]]]) -> dict[str, Any]:
    texts = [text for text, _ in written]
    most = max(len(right) for _, right in written)
    # a text with fewer references has its first one several times, which changes no score
    references = [[right[number] if number < len(right) else right[0] for _, right in written]
                  for number in range(most)]
    exact = sum(text.strip() in [one.strip() for one in right] for text, right in written)
    return _scores(texts, references) | {"exact_match": 100 * exact / len(texts), "examples": len(texts)}


def _scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """In percent, with the way each was counted."""
    letters = "".join(references[0])
    chinese = sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2
    words = translation_scores(texts, references, tokenize="zh" if chinese else "13a")
    rouge = summary_scores(texts, references)
    return {"bleu": words["bleu"]["score"], "chrf": words["chrf"]["score"], "rouge_l": rouge["rougeL"],
            "signatures": {"bleu": words["bleu"]["signature"], "chrf": words["chrf"]["signature"],
                           "rouge_l": rouge["signature"]}}


def _write_lines(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    store(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
