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

from stemma.atomic_files import atomic_folder
from stemma.checksummed_files import has_checksum, read_verified_lines, write_file, write_object
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.device import accepts_device
from stemma.errors import UserError
from stemma.exchange.load import open_model
from stemma.generation.decoding_mode import decoding_mode
from stemma.generation.options import TranslationOptions
from stemma.generation.translate import translate
from stemma.model import Model
from stemma.notes import quietly
from stemma.objectives import build_objectives, check_requirements
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import MixtureSettings
from stemma.schema.objective import DecodingMode
from stemma.schema.overrides import flatten, parse_changes
from stemma.tasks.kinds.seq2seq import KIND
from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores
from stemma.tasks.runs.common import (
    ORIGIN,
    TrainingLength,
    check_start_and_out,
    finetune_overrides,
    layer_decay_overrides,
    with_finetuning_choices,
)
from stemma.tasks.runs.finetune_spec import Seq2SeqFinetuneSpec
from stemma.tasks.runs.seq2seq_data import Seq2SeqData
from stemma.text.chinese_words import CJK_RUN
from stemma.text.parallel import PairSource, TextPair, read_pairs
from stemma.text.text_io import display_name
from stemma.training.callbacks import accepts_callbacks
from stemma.training.pretrain import open_run
from stemma.training.pretrain_loader import EpochStats, PretrainLoader
from stemma.training.run_folder import RECIPE, RESULT, RunConfig, TextReadingOptions, read_result
from stemma.training.run_lock import finished_result, lock_new_run, lock_run

logger = logging.getLogger(__name__)

# Where the source ends is to be seen, where to end is to be learned. A permuted model's two texts are one segment: what
# a cache has kept of either is.
OBJECTIVES: dict[DecodingMode | None, str] = {"prefix": "A end B end", "next": "A end B end",
                                  "permuted": "A separator B separator"}
ROWS = 16  # of the longest pairs make a batch, and more of shorter ones
SMOOTHING = 0.1
HELD_OUT = ("dev", "test")


@accepts_device
@accepts_callbacks
def finetune_seq2seq(start: str | Path, data: Seq2SeqData, out: str | Path, *, epochs: float | None = None,
                     steps: int | None = None,
             minutes: float | None = None, beams: int = 4, seed: int = 0, changes: Sequence[str] = (),
             reading: TextReadingOptions = TextReadingOptions(), overwrite: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Train a model on pairs and score what it writes for the held-out ones; returns what `--json` prints."""
    run, length = Path(out), TrainingLength(epochs, steps, minutes)
    length = TrainingLength(data.epochs) if length == TrainingLength() else length
    origin = check_start_and_out(start, run, overwrite)
    TranslationOptions(beams=beams)
    _scores([""], [[""]])  # a library that is missing is named now, not after an hour
    model = open_model(start)
    chosen, rest = with_finetuning_choices(model.recipe, changes)
    wanted = seq2seq_recipe(replace(model, recipe=chosen), data.mixture)
    wanted = wanted.with_changes({"training": data.training}, data.origin) if data.training else wanted
    wanted = wanted.with_overrides(rest)
    typed = {*flatten(parse_changes(changes)[0]), *flatten({"training": data.training})}
    with atomic_folder(run, overwrite, checksums=False) as place:
        corpus = _build_corpus(data, model, place, reading)
        _write_held_out(data, place, reading)
        wanted, epoch = _fit_batch_size(wanted, corpus, data, seed, typed)
        wanted, budget = length.apply_to(wanted, epoch.steps, typed)
        facts = Seq2SeqFinetuneSpec(KIND, {**(data.options or {}), "beams": beams}, list(changes), epoch.pairs,
                                    epoch.steps,
                             _max_target_length(corpus, wanted), {task.name: task.metric for task in data.tasks})
        RunConfig("corpus", [], budget, seed, origin, reading, corpus.fingerprint, task=facts.to_json()).write(place)
        write_file(place / RECIPE, wanted.to_toml())
    with lock_new_run(run):
        return run_to_end(run, show)


def resume(run: Path, show: bool) -> dict[str, Any]:
    """Go on with such a run. Damage to what it is to be judged by is told now, not when training is over."""
    if read_result(run) is None:
        _read_held_out(run)
    if (known := finished_result(run)) is not None:
        return known
    with lock_run(run):
        return run_to_end(run, show)


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Train and score; what is reported goes to disk when all of it is known."""
    training = open_run(run, show)
    model, result = training.save(training.trainer.train())
    result |= score_seq2seq(run, training.plan, model, result)
    write_object(run / RESULT, result)
    return result


def seq2seq_recipe(model: Model, mixture: MixtureSettings | None = None) -> Recipe:
    """The model's recipe with the objective that teaches it pairs, trained gently."""
    recipe, settings = model.recipe, model.recipe.settings
    name, objective = _objective(model)
    changes: dict[str, Any] = {"corpus.packing": "parallel", "tokenizer.vocab_size": model.network.vocab_size,
                               **{f"objective.{name}.{key}": value for key, value in objective.items()}}
    if pair := OBJECTIVES.get(decoding_mode(recipe)):
        changes["corpus.pair"] = pair
    if mixture is not None:
        changes["corpus.mixture"] = mixture.model_dump(exclude_none=True)
    gone = [f"objective.{other}" for other in settings.objective if other != name]
    return recipe.with_changes({**changes, **finetune_overrides(settings, gone), **layer_decay_overrides(settings)},
                               ORIGIN)


def _objective(model: Model) -> tuple[str, dict[str, Any]]:
    """The objective that teaches pairs in the way this model writes: its name, and its keys."""
    recipe = model.recipe
    way = decoding_mode(recipe)
    able = {name: (task.generation, task.kind, task.pair_finetuning_keys) for name,
            task in recipe.settings.objective.items()
            if task.pair_finetuning_keys is not None}
    if way == "decoder":
        # who has learned to write from a source goes on in the same manner; the first to say how counts
        stated = [keys for written, _, keys in able.values() if written is not None and written.mode == way]
        merged = {key: value for keys in reversed(stated) for key, value in keys.items()}
        return merged["kind"], {"smoothing": SMOOTHING, **merged}
    if way is None and (model.is_discriminator or recipe.settings.network.generator is not None):
        raise UserError(f"{recipe.label} judges tokens and guesses none, so it cannot learn to write; its generator "
                        "can: give the folder generator/ below the model's.")
    for name, (written, kind, keys) in able.items():
        fits = written is None if way is None else written is not None and (written.mode == "cloze") == (way == "cloze")
        if fits:
            return name, {"kind": kind, **keys, "packing": "parallel", "start_step": 0}
    raise UserError(f"{recipe.label} has learned no objective that guesses tokens, so it cannot learn to write; start "
                    "from the model as it was pre-trained.")


# --- the pairs --------------------------------------------------------------------------------------------------------


def _build_corpus(data: Seq2SeqData, model: Model, folder: Path, reading: TextReadingOptions) -> Corpus:
    train = [source for task in data.tasks for source in task.train]
    dev = [source for task in data.tasks for source in task.dev]
    build_corpus([], model.require_tokenizer(), folder / "corpus", pairs=[*train, *dev],
                 held_out={source.name for source in dev}, **reading.parallel_text_arguments())
    return Corpus.open(folder / "corpus")


def _pairs(sources: Sequence[PairSource], reading: TextReadingOptions) -> Iterator[tuple[PairSource, TextPair]]:
    for source in sources:
        for pair in quietly(read_pairs([source], **reading.parallel_text_arguments())):
            yield source, pair


def _write_held_out(data: Seq2SeqData, folder: Path, reading: TextReadingOptions) -> None:
    """Keep what is written for the sake of scores, with every target that would be right."""
    held: set[tuple[str, str]] = set()
    for name in HELD_OUT:
        lines = []
        for task in data.tasks:
            for source, pair in _pairs(getattr(task, name), reading):
                lines.append({"task": task.name, "where": f"{display_name(Path(source.path))}, line {pair.line}",
                              "source": pair.source, "references": [pair.target, *pair.extra_targets]})
                held.add((pair.source, pair.target))
        if lines:
            _write_jsonl(folder / f"{name}.jsonl", lines)
    known = held & {(pair.source, pair.target) for task in data.tasks for _, pair in _pairs(task.train, reading)
                    if (pair.source, pair.target) in held}
    if known:
        logger.warning(
            f"{len(known):,} of {len(held):,} held-out pairs are among those to train on, so scores will say how "
            "well they are remembered; give others with --dev and --test.")


def _fit_batch_size(recipe: Recipe, corpus: Corpus, data: Seq2SeqData, seed: int,
                    overridden: set[str]) -> tuple[Recipe, EpochStats]:
    """Batches of as many places as some of the longest pairs fill; pairs longer than the model's window are told."""
    check_requirements(recipe, corpus)
    length = recipe.settings.corpus.sequence_length
    epoch = PretrainLoader(recipe, corpus, build_objectives(recipe), seed).epoch_stats()
    if not epoch.pairs:
        source, pair = next(_pairs(data.tasks[0].train, TextReadingOptions(empty="skip")))
        raise UserError(f"every pair to train on is longer than the {length:,} tokens that {recipe.label} reads, "
                        f"beginning with {display_name(Path(source.path))}, line {pair.line}; shorten them, or set "
                        "corpus.sequence_length higher if the network has more places.")
    if epoch.num_dropped:
        logger.warning(f"{epoch.num_dropped:,} of {epoch.pairs + epoch.num_dropped:,} pairs to train on are longer than the "
                       f"{length:,} tokens that {recipe.label} reads, and are left out.")
    if "training.batch_size" not in overridden:
        recipe = recipe.with_changes({"training.batch_size": max(1, round(ROWS * epoch.max_row_length / length))},
                                     ORIGIN)
    supply = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    if supply.mixture_weights is not None:
        rates = zip(data.tasks, supply.mixture_weights, strict=False)  # behind those of the tasks stand the held-out
        #                                                                groups'
        logger.info(
            f"tasks are drawn at these rates: {', '.join(f'{task.name} {rate:.1%}' for task, rate in rates)}.")
    return recipe, supply.epoch_stats()


def _max_target_length(corpus: Corpus, recipe: Recipe) -> int:
    """Tokens of the longest target that is learned, and its end: nothing longer need be written to be scored."""
    count = sum(group["documents"] for group in corpus.manifest["groups"] if not group.get("held_out"))
    targets = np.diff(corpus.sentence_starts[:2 * count + 1])[1::2]  # what is held out stands behind
    return min(int(targets.max()), recipe.settings.corpus.sequence_length) + 1


# --- scores -----------------------------------------------------------------------------------------------------------


def _read_held_out(run: Path) -> dict[str, list[dict[str, Any]]]:
    files = {name: run / f"{name}.jsonl" for name in HELD_OUT}
    return {name: read_verified_lines(file, "bring it back, or start the fine-tune again in another folder.")
            for name, file in files.items() if file.is_file() or has_checksum(file)}


def score_seq2seq(run: Path, plan: RunConfig, model: Model, result: dict[str, Any]) -> dict[str, Any]:
    """What the model writes for the held-out sources, kept beside them in dev.jsonl and test.jsonl, and how good it
    is."""
    facts = Seq2SeqFinetuneSpec.from_run_config(plan)
    metrics: dict[str, Any] = {}
    for name, lines in _read_held_out(run).items():
        logger.info(f"writing from {len(lines):,} sources of {name}, to be scored")
        made = translate(model, [line["source"] for line in lines], line_names=[line["where"] for line in lines],
                         beams=facts.options["beams"], max_length_ratio=0, max_extra=facts.longest, crop=True)
        _write_jsonl(run / f"{name}.jsonl", [line | {"text": one.text} for line, one in zip(lines, made, strict=True)])
        found = {called: _score_task([(one.text, line["references"]) for line, one in zip(lines, made, strict=True)
                                  if line["task"] == called]) for called in dict.fromkeys(x["task"] for x in lines)}
        loss = {"loss": result["validation_loss"]} if name == "dev" else {}
        metrics[name] = loss | (next(iter(found.values())) if len(facts.metrics) == 1
                                else _combine_task_scores(found, facts.metrics))
    seen = result["steps"] / facts.steps_in_epoch * facts.pairs
    return {"task": facts.kind, "model": plan.start, "metrics": metrics,
            "examples_per_second": seen / max(result["seconds"], 1e-9)}


def _combine_task_scores(task_scores: dict[str, dict[str, Any]], metrics: Mapping[str, str]) -> dict[str, Any]:
    """The scores of each task, and the mean of those that count."""
    counting = [scores[metrics[name]] for name, scores in task_scores.items()]
    return {"mean": sum(counting) / len(counting), "tasks": task_scores}


def _score_task(predictions: Sequence[tuple[str, list[str]]]) -> dict[str, Any]:
    texts = [text for text, _ in predictions]
    most = max(len(right) for _, right in predictions)
    # a text with fewer references has its first one several times, which changes no score
    references = [[right[number] if number < len(right) else right[0] for _, right in predictions]
                  for number in range(most)]
    exact = sum(text.strip() in [one.strip() for one in right] for text, right in predictions)
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


def _write_jsonl(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    write_file(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
