"""`inspect`, `pretrain` and `resume`: training examples, pre-training, and interrupted runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TRAIN, computes
from stemma.cli.completion import recipe_names
from stemma.cli.inspect_view import show_examples, show_tokens
from stemma.cli.options import CorpusOption, CorpusText, NewRun, SeedOption
from stemma.cli.output import JsonOption, at_least, emit
from stemma.cli.recipes import ChangesArgument, RecipeArgument
from stemma.errors import UserError, pluralize


@dataclass(frozen=True)
class TextBudget:
    """The budget of a pre-training."""

    steps: Annotated[int | None, typer.Option(help="Number of steps; by default the recipe's.")] = None
    tokens: Annotated[int | None, typer.Option(help="Or number of training tokens.")] = None
    minutes: Annotated[float | None, typer.Option(help="Or minutes of training.")] = None


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TRAIN)(inspect)
    app.command(rich_help_panel=TRAIN)(pretrain)
    app.command(rich_help_panel=TRAIN)(resume)


@computes
def pretrain(recipe: RecipeArgument, corpus: CorpusOption, run: NewRun, budget: TextBudget, text: CorpusText,
             changes: ChangesArgument = None,
             start: Annotated[str | None, typer.Option("--from", metavar="MODEL",
                                                       help="Initialise from the weights of this model.")] = None,
             encoder_from: Annotated[str | None, typer.Option(metavar="MODEL", show_default=False, help=
                                                              "Start the encoder of a translator from this LSTM "
                                                              "language model.")] = None,
             decoder_from: Annotated[str | None, typer.Option(metavar="MODEL", show_default=False, help=
                                                              "Start its decoder from this one.")] = None,
             vectors: Annotated[str | None, typer.Option("--vectors", metavar="FILE", show_default=False, help=
                                                         "Start the embedding of words from this file of word vectors "
                                                         "(word2vec, GloVe, fastText).")] = None,
             tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard as well.")] = False,
             checkpoint_words: Annotated[str | None, typer.Option(
                 metavar="1M,2M,...", show_default=False, help="Also save the model at these numbers of words read (as "
                 "the corpus counts words), in RUN/revisions/words-1M/.")] = None,
             json: JsonOption = False) -> None:
    """Pre-train a recipe on a corpus or on raw text. `stemma resume` continues an interrupted run.

    Example: stemma pretrain bert@tiny --corpus notes.txt --out run --minutes 5 network.layers=4
    """
    from stemma.training.pretrain import pretrain as run_pretrain

    result = run_pretrain(recipe, corpus, run.out, **vars(budget), **run.options(), init_from=start, vectors=vectors,
                          encoder_from=encoder_from, decoder_from=decoder_from,
                          changes=changes or (), reading=text.reading(), target=text.target or (),
                          tensorboard=tensorboard, show_progress=sys.stderr.isatty(),
                          checkpoint_words=() if checkpoint_words is None else checkpoint_words)
    finish(result, run.out, json)


@computes
def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an interrupted run or experiment.")],
           processes: Annotated[int | None, at_least(1, "Of an experiment: cells to run in parallel")] = None,
           json: JsonOption = False) -> None:
    """Continue an interrupted run, pipeline or experiment (compare, ablate, claims). Several processes can share the
    cells of an experiment.

    A run with a budget in steps or tokens ends with the same bytes as without the interruption. A run with a budget in
    minutes trains for the remaining minutes.

    Example: stemma resume run
    """
    from stemma.lab.experiment import FILE as LAB
    from stemma.tasks.runs.common import PIPELINE
    from stemma.tasks.runs.common import resume as resume_run

    if (run / LAB).is_file():
        from stemma.cli.compare_ablate import finish as finish_lab
        from stemma.lab.run_experiment import resume_lab

        finish_lab(resume_lab(run, processes=processes or 1, show=sys.stderr.isatty()), run, json)
        return
    if processes is not None:
        raise UserError(f"--processes is for a lab with several cells, and {run} is a single run; leave it out.")
    result = resume_run(run, show=sys.stderr.isatty())
    if (run / PIPELINE).is_file():
        from stemma.cli.pipeline import finish as finish_pipeline

        finish_pipeline(result, json)
    else:
        finish(result, run, json)


def finish(result: dict[str, Any], run: Path, as_json: bool) -> None:
    """Write the report of a finished run and print its result."""
    from stemma.lab.report.run_html import try_report  # imported late: it is slow, and training may fail

    try_report(run)

    def human() -> None:
        validation, unigram = result.get("validation_loss"), result.get("unigram_loss")
        held_out = f" · held-out loss {validation:.3f} (unigram {unigram:.3f})" if validation is not None else ""
        print(f"{result['recipe']} · {pluralize(result['steps'], 'step')}, {pluralize(result['tokens'], 'token')} in "
              f"{result['seconds']:,.0f} s ({result['tokens_per_second']:,.0f} tokens/s){held_out}")
        baseline = result.get("baseline", {}).get("linear", {})
        for name, metrics in result.get("metrics", {}).items():
            print("\n".join(_scores(name, metrics, baseline)))
        for task, finetuned in result.get("finetuned", {}).items():
            for name, metrics in finetuned["metrics"].items():
                print("\n".join(_scores(f"{name}, {task} after its own fine-tuning", metrics)))
        if revisions := result.get("revisions"):
            print(f"{pluralize(len(revisions), 'revision')} in {result['run']}/revisions: {', '.join(revisions)} "
                  f"({result['words']:,} words read in all)")
        print(f"{result['run']}/model is ready: `stemma {_usage_hint(run)}`")

    emit(result, as_json, human)


METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L", "exact_match": "exact"}  # in percent


def _scores(name: str, metrics: dict[str, Any], baseline: Mapping[str, Any] = {}) -> Iterator[str]:
    """One line per task with its scores on a held-out set, and below it those of the linear baseline."""
    for task, scores in metrics.get("tasks", {"": metrics}).items():
        label = f"{name}{f', {task}' if task else ''}"
        signature = [scores["signatures"]["bleu"]] if "signatures" in scores else []
        yield " · ".join([label, *_format_scores(scores), pluralize(scores["examples"], "example"), *signature])
        linear, fit = (part.get("tasks", {}).get(task) if task else part
                       for part in (baseline.get(name, {}), baseline.get("fit", {})))
        if linear:
            yield " · ".join([f"{label}, linear baseline ({fit['method']})", *_format_scores(linear)])


def _format_scores(scores: Mapping[str, Any]) -> list[str]:
    return [f"{METRIC_NAMES.get(key, key)} {value:.2f}" if key in METRIC_NAMES or abs(value) > 1
            else f"{key} {value:.4f}"
            for key, value in scores.items() if isinstance(value, float) and key != "loss"]


def _usage_hint(run: Path) -> str:
    """The command that uses a finished model."""
    from stemma import recipe_loading
    from stemma.generation.decoding_mode import decoding_mode, is_seq2seq
    from stemma.schema.corpus import packing_settings

    if (run / "model" / "tasks.json").is_file():
        return f"predict {run} FILE"
    trained = recipe_loading.recipe(run / "recipe.toml", stored=True)
    if trained.settings.network.depth.static:
        return f"neighbours {run} WORD"
    mode = decoding_mode(trained)
    paired = any(packing_settings(packing).reads == "pairs" for packing in trained.settings.packings().values())
    if is_seq2seq(trained) and paired:
        return f'translate {run} --text "..."'
    if mode is None and not any(task.masks_tokens for task in trained.settings.objective.values()):
        return f"embed {run} FILE --out vectors.npy"
    return f'{"fill" if mode in (None, "cloze") else "generate"} {run} "..."'


@computes
def inspect(recipe: Annotated[str, typer.Argument(metavar="RECIPE|MODEL", autocompletion=recipe_names,
                                                  help="A recipe, to see its training examples; or a trained "
                                                       "model, with --text.")],
            source: CorpusText, changes: ChangesArgument = None,
            corpus: Annotated[list[str] | None, typer.Option(metavar="DIR|PATH", show_default=False,
                                                             help="A corpus folder, or raw text.")] = None,
            text: Annotated[str | None, typer.Option(help="For each token of this text: its probability under the "
                                                     "model, and its number of ponder steps (adaptive computation "
                                                     "time).")] = None,
            examples: Annotated[int, at_least(1, "Number of examples")] = 2,
            step: Annotated[int, at_least(0, "Training step whose batch to show")] = 0,
            seed: SeedOption = 0, json: JsonOption = False) -> None:
    """Show training examples as text: masked, replaced, unchanged or permuted tokens, targets, attention mask.

    Example: stemma inspect bert@tiny --corpus corpus objective.masked_lm.unit=word
    """
    if text is not None:
        _show_tokens(recipe, text, bool(corpus or changes), json)
        return
    if not corpus:
        raise UserError("`stemma inspect` needs --corpus (training examples of a recipe), or --text and a trained "
                        "model (its predictions for that text).")
    from stemma import recipe_loading
    from stemma.corpus.corpus import Corpus
    from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, locate_target
    from stemma.training.preview import inspect as sample_examples
    from stemma.training.run_folder import resolve_corpus_argument

    resolved = recipe_loading.recipe(recipe, changes or ())
    folder, files = resolve_corpus_argument(corpus)
    target = locate_target(resolved, folder, files, source.target or [])
    opened = Corpus.open(folder) if folder else build_or_load_corpus(files, resolved, source.reading(), target=target,
                                                                     split_first=True)
    result = sample_examples(adopt_tokenizer(resolved, opened), opened, examples, seed, step)
    emit(result, json, lambda: show_examples(result))


def _show_tokens(model: str, text: str, has_recipe_options: bool, json: bool) -> None:
    from stemma.device import choose_device
    from stemma.exchange.load import open_model
    from stemma.generation.token_report import token_report

    if has_recipe_options:
        raise UserError("--text is for a trained model, which takes no --corpus and no changes; leave them out.")
    loaded = open_model(model, choose_device())
    tokens = token_report(loaded, text)
    emit({"model": model, "text": text, "tokens": tokens}, json, lambda: show_tokens(tokens))
