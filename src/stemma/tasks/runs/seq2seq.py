"""Sequence-to-sequence fine-tuning on text pairs: translation, summarization, question generation.

The pairs become a corpus in the run folder, with the model's tokenizer and the dev pairs held out. The recipe is the
model's, with one objective that trains pairs in the decoding mode of the model:

- an encoder-decoder trains `translation`, whatever its pre-training objective;
- UniLM predicts its target with 70% of the tokens masked (arXiv:1905.03197, as in its released commands), and so does a
  masked LM, which learns the attention mask from source to target in fine-tuning;
- a prefix or causal LM predicts the target token by token after the source;
- a permutation LM (XLNet) does so through its query stream, with the source as context.
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
from stemma.tasks.runs.find_rate import check_one_rate
from stemma.tasks.runs.find_rate import find_rate as search_rate
from stemma.tasks.runs.finetune_defaults import (
    StartModel,
    apply_defaults,
    log_defaults,
    published_dropouts,
    record_json,
    stated_keys,
    uses_layer_decay,
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

# Pair templates by decoding mode. The end token marks the end of the source and teaches the model to stop. A
# permutation LM has both texts in one segment, as in its cache.
PAIR_TEMPLATES: dict[DecodingMode | None, str] = {"prefix": "A end B end", "next": "A end B end",
                                                  "permuted": "A separator B separator"}
ROWS = 16  # batch size for the longest pairs; shorter pairs make larger batches
SMOOTHING = 0.1  # label smoothing
HELD_OUT = ("dev", "test")


@accepts_device
@accepts_callbacks
def finetune_seq2seq(start: str | Path, data: Seq2SeqData, out: str | Path, *, epochs: float | None = None,
                     steps: int | None = None, minutes: float | None = None, beams: int = 4, seed: int = 0,
                     changes: Sequence[str] = (), reading: TextReadingOptions = TextReadingOptions(),
                     find_rate: bool = False, overwrite: bool = False, device: str | None = None,
                     callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Train a model on pairs and score its output for the held-out ones; returns the object that `--json` prints.
    `find_rate` finds the learning rate first (`find_rate.py`)."""
    run, length = Path(out), TrainingLength(epochs, steps, minutes)
    length = TrainingLength(data.epochs) if length == TrainingLength() else length
    origin = check_start_and_out(start, run, overwrite)
    TranslationOptions(beams=beams)
    _scores([""], [[""]])  # a missing library is reported before training
    model = open_model(start)
    model.require_hidden_states("be fine-tuned")
    with_section, other_changes = with_finetuning_choices(model.recipe, changes)
    recipe = seq2seq_recipe(replace(model, recipe=with_section), data.mixture)
    recipe = recipe.with_changes({"training": data.training}, data.origin) if data.training else recipe
    recipe = recipe.with_overrides(other_changes)
    overridden = {*flatten(parse_changes(changes)[0]), *flatten({"training": data.training})}
    check_one_rate(recipe, overridden, False, find_rate)
    start_model = StartModel.of(model)
    with atomic_folder(run, overwrite, checksums=False) as folder:
        corpus = _build_corpus(data, model, folder, reading)
        _write_held_out(data, folder, reading)
        recipe, epoch = _fit_batch_size(recipe, corpus, data, seed, overridden)
        recipe, budget, defaults = apply_defaults(recipe, start_model, length, epoch.steps, overridden, epoch.pairs,
                                                  find_rate)
        options = {**(data.options or {}), "beams": beams, **({"find-rate": True} if find_rate else {})}
        spec = Seq2SeqFinetuneSpec(KIND, options, list(changes), epoch.pairs, epoch.steps,
                                    _max_target_length(corpus, recipe),
                                    {task.name: task.metric for task in data.tasks}, defaults=defaults,
                                    pretraining=record_json(model), find_rate=find_rate or None)
        RunConfig("corpus", [], budget, seed, origin, reading, corpus.fingerprint, task=spec.to_json()).write(folder)
        write_file(folder / RECIPE, recipe.to_toml())
    with lock_new_run(run):
        return run_to_end(run, show)


def resume(run: Path, show: bool) -> dict[str, Any]:
    """Resume a run. Damage to the held-out files is reported before training continues."""
    if read_result(run) is None:
        _read_held_out(run)
    if (result := finished_result(run)) is not None:
        return result
    with lock_run(run):
        return run_to_end(run, show)


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Train, score and write the result."""
    found = search_rate(run, lambda: open_run(run, False).trainer)
    training = open_run(run, show)
    log_defaults(Seq2SeqFinetuneSpec.from_run_config(training.config).defaults)
    model, result = training.save(training.trainer.train())
    result |= score_seq2seq(run, training.config, model, result) | ({"learning_rate_search": found} if found else {})
    write_object(run / RESULT, result)
    return result


def seq2seq_recipe(model: Model, mixture: MixtureSettings | None = None) -> Recipe:
    """The model's recipe with the objective for pairs and the overrides of [finetuning]."""
    recipe, settings = model.recipe, model.recipe.settings
    name, objective = _objective(model)
    changes: dict[str, Any] = {"corpus.packing": "parallel", "tokenizer.vocab_size": model.network.vocab_size,
                               **{f"objective.{name}.{key}": value for key, value in objective.items()}}
    if pair := PAIR_TEMPLATES.get(decoding_mode(recipe)):
        changes["corpus.pair"] = pair
    if mixture is not None:
        changes["corpus.mixture"] = mixture.model_dump(exclude_none=True)
    removed = [f"objective.{other}" for other in settings.objective if other != name]
    decay = layer_decay_overrides(settings) if uses_layer_decay(StartModel.of(model), stated_keys(recipe)) else {}
    return recipe.with_changes({**changes, **finetune_overrides(settings, removed), **published_dropouts(recipe),
                                **decay}, ORIGIN)


def _objective(model: Model) -> tuple[str, dict[str, Any]]:
    """The name and keys of the objective that trains pairs in the decoding mode of this model."""
    recipe = model.recipe
    mode = decoding_mode(recipe)
    candidates = {name: (task.generation, task.kind, task.pair_finetuning_keys)
                  for name, task in recipe.settings.objective.items() if task.pair_finetuning_keys is not None}
    if mode == "decoder":
        # keep the settings of the pre-training objectives; the first objective takes precedence
        pair_keys = [keys for generation, _, keys in candidates.values()
                     if generation is not None and generation.mode == mode]
        merged = {key: value for keys in reversed(pair_keys) for key, value in keys.items()}
        return merged["kind"], {"smoothing": SMOOTHING, **merged}
    if mode is None and (model.is_discriminator or recipe.settings.network.generator is not None):
        raise UserError(f"{recipe.label} is a discriminator and predicts no tokens, so it cannot learn to generate; "
                        "its generator can: give the folder generator/ below the model's.")
    if mode == "diffusion":
        raise UserError(f"{recipe.label} generates by unmasking and cannot be fine-tuned on pairs; start from a causal "
                        "or masked language model, such as gpt2 or roberta.")
    for name, (generation, kind, keys) in candidates.items():
        if mode is None or generation is None:
            matches = mode is None and generation is None
        else:
            matches = (generation.mode == "cloze") == (mode == "cloze")
        if matches:
            return name, {"kind": kind, **keys, "packing": "parallel", "start_step": 0}
    raise UserError(f"{recipe.label} has no objective that predicts tokens, so it cannot learn to generate; start "
                    "from the pre-trained model.")


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
    """Write the held-out sources with all their references, and warn about overlap with the training pairs."""
    held_out: set[tuple[str, str]] = set()
    for split in HELD_OUT:
        lines = []
        for task in data.tasks:
            for source, pair in _pairs(getattr(task, split), reading):
                lines.append({"task": task.name, "where": f"{display_name(Path(source.path))}, line {pair.line}",
                              "source": pair.source, "references": [pair.target, *pair.extra_targets]})
                held_out.add((pair.source, pair.target))
        if lines:
            _write_jsonl(folder / f"{split}.jsonl", lines)
    overlap = held_out & {(pair.source, pair.target) for task in data.tasks for _, pair in _pairs(task.train, reading)
                          if (pair.source, pair.target) in held_out}
    if overlap:
        logger.warning(
            f"{len(overlap):,} of {len(held_out):,} held-out pairs also occur in the training set, so scores partly "
            "measure memorization; give others with --dev and --test.")


def _fit_batch_size(recipe: Recipe, corpus: Corpus, data: Seq2SeqData, seed: int,
                    overridden: set[str]) -> tuple[Recipe, EpochStats]:
    """Set the batch size so that `ROWS` of the longest pairs fill a batch; report pairs that are too long."""
    check_requirements(recipe, corpus)
    length = recipe.settings.corpus.sequence_length
    epoch = PretrainLoader(recipe, corpus, build_objectives(recipe), seed).epoch_stats()
    if not epoch.pairs:
        source, pair = next(_pairs(data.tasks[0].train, TextReadingOptions(empty="skip")))
        raise UserError(f"every pair to train on is longer than the {length:,} tokens that {recipe.label} reads, "
                        f"beginning with {display_name(Path(source.path))}, line {pair.line}; shorten them, or set "
                        "corpus.sequence_length higher if the network has more positions.")
    if epoch.num_dropped:
        logger.warning(f"{epoch.num_dropped:,} of {epoch.pairs + epoch.num_dropped:,} training pairs are longer than "
                       f"the {length:,} tokens that {recipe.label} reads, and are left out.")
    if "training.batch_size" not in overridden:
        recipe = recipe.with_changes({"training.batch_size": max(1, round(ROWS * epoch.max_row_length / length))},
                                     ORIGIN)
    loader = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    if loader.mixture_weights is not None:
        rates = zip(data.tasks, loader.mixture_weights, strict=False)  # the held-out groups come last
        logger.info(
            f"sampling rates of the tasks: {', '.join(f'{task.name} {rate:.1%}' for task, rate in rates)}.")
    return recipe, loader.epoch_stats()


def _max_target_length(corpus: Corpus, recipe: Recipe) -> int:
    """Tokens of the longest training target with its end token; generation for scoring stops there."""
    count = sum(group["documents"] for group in corpus.manifest["groups"] if not group.get("held_out"))
    targets = np.diff(corpus.sentence_starts[:2 * count + 1])[1::2]  # held-out pairs come last
    return min(int(targets.max()), recipe.settings.corpus.sequence_length) + 1


# --- scores -----------------------------------------------------------------------------------------------------------


def _read_held_out(run: Path) -> dict[str, list[dict[str, Any]]]:
    files = {name: run / f"{name}.jsonl" for name in HELD_OUT}
    return {name: read_verified_lines(file, "bring it back, or start the fine-tune again in another folder.")
            for name, file in files.items() if file.is_file() or has_checksum(file)}


def score_seq2seq(run: Path, run_config: RunConfig, model: Model, result: dict[str, Any]) -> dict[str, Any]:
    """Generate outputs for the held-out sources, store them in dev.jsonl and test.jsonl, and compute the metrics."""
    spec = Seq2SeqFinetuneSpec.from_run_config(run_config)
    metrics: dict[str, Any] = {}
    for name, lines in _read_held_out(run).items():
        logger.info(f"generating outputs for {len(lines):,} sources of {name}, to be scored")
        outputs = translate(model, [line["source"] for line in lines], line_names=[line["where"] for line in lines],
                            beams=spec.options["beams"], max_length_ratio=0, max_extra=spec.longest, crop=True)
        _write_jsonl(run / f"{name}.jsonl",
                     [line | {"text": output.text} for line, output in zip(lines, outputs, strict=True)])
        by_task: dict[str, list[tuple[str, list[str]]]] = {}
        for line, output in zip(lines, outputs, strict=True):
            by_task.setdefault(line["task"], []).append((output.text, line["references"]))
        task_scores = {task: _score_task(predictions) for task, predictions in by_task.items()}
        loss = {"loss": result["validation_loss"]} if name == "dev" else {}
        metrics[name] = loss | (next(iter(task_scores.values())) if len(spec.metrics) == 1
                                else _combine_task_scores(task_scores, spec.metrics))
    examples_seen = result["steps"] / spec.steps_in_epoch * spec.pairs
    return {"task": spec.kind, "model": run_config.start, "metrics": metrics,
            "examples_per_second": examples_seen / max(result["seconds"], 1e-9),
            **({"defaults": dict(spec.defaults)} if spec.defaults else {})}


def _combine_task_scores(task_scores: dict[str, dict[str, Any]], metrics: Mapping[str, str]) -> dict[str, Any]:
    """The scores of each task, and the mean of their selection metrics."""
    selected = [scores[metrics[name]] for name, scores in task_scores.items()]
    return {"mean": sum(selected) / len(selected), "tasks": task_scores}


def _score_task(predictions: Sequence[tuple[str, list[str]]]) -> dict[str, Any]:
    texts = [text for text, _ in predictions]
    count = max(len(gold) for _, gold in predictions)
    # a text with fewer references repeats its first one, which changes no score
    references = [[gold[k] if k < len(gold) else gold[0] for _, gold in predictions] for k in range(count)]
    exact = sum(text.strip() in [reference.strip() for reference in gold] for text, gold in predictions)
    return _scores(texts, references) | {"exact_match": 100 * exact / len(texts), "examples": len(texts)}


def _scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Scores in percent, with their signatures."""
    letters = "".join(references[0])
    chinese = sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2
    scores = translation_scores(texts, references, tokenize="zh" if chinese else "13a")
    rouge = summary_scores(texts, references)
    return {"bleu": scores["bleu"]["score"], "chrf": scores["chrf"]["score"], "rouge_l": rouge["rougeL"],
            "signatures": {"bleu": scores["bleu"]["signature"], "chrf": scores["chrf"]["signature"],
                           "rouge_l": rouge["signature"]}}


def _write_jsonl(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    write_file(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
