"""`stemma finetune`: fine-tune a model on a task. Each task is a verb."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stemma import registry
from stemma.cli.common_options import computes
from stemma.cli.options import FileEncoding, NewRun, NoBaselineOption, PairOptions, TaskBudget
from stemma.cli.output import JsonOption
from stemma.cli.pretrain import finish
from stemma.cli.recipes import ChangesArgument
from stemma.errors import UserError, did_you_mean

ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", show_default=False,
                                          help="A run folder, its model/, or a Hugging Face folder.")]

StartOption = Annotated[str | None, typer.Option("--model", metavar="MODEL", show_default=False,
                                                 help="A run folder, its model/, or a Hugging Face folder; with "
                                                      "--vectors a recipe.")]

finetune_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class TaskGroup(TyperGroup):
    """A verb for each registered kind of task. The name of a data set is a verb too: its kind of task, in its official
    file format."""

    def list_commands(self, ctx: Any) -> list[str]:
        return registry.kinds("task")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        exists = registry.find("task", cmd_name) is not None
        if not exists:
            from stemma.tasks.datasets import DATASETS

            exists = cmd_name in DATASETS
        return super().get_command(ctx, DEFAULT_KIND) if exists else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each kind with the description of its class."""
        from stemma.tasks.kinds import task_kind

        with formatter.section("Commands"):
            formatter.write_dl([(name, task_kind(name).description) for name in self.list_commands(ctx)])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not ctx.resilient_parsing and registry.find("task", args[0]) is None:
            load_named_plugins(args)  # a plug-in may register the kind
        unknown = args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if unknown and not ctx.resilient_parsing:
            from stemma.tasks.datasets import DATASETS

            names = [*self.list_commands(ctx), *DATASETS]
            raise UserError(f'no task "{args[0]}".{did_you_mean(args[0], names)} There are {", ".join(names)}.')
        return super().resolve_command(ctx, args)


FindRateOption = Annotated[bool, typer.Option("--find-rate", help="Find the learning rate first, in at most 100 steps "
                                              "with a rising rate, and train with it.")]


@finetune_app.callback()
def _tasks() -> None:
    """Fine-tune a model on a task: one of those below, or a data set by name, in its official format
    (sst2, cola, mrpc, stsb, mnli, squad2, conll2003, chnsenticorp, lcqmc, cmrc2018, ...).

    Example: stemma finetune classify --model run --train train.tsv --dev dev.tsv --out tuned

    Example: stemma finetune sst2 --model run --train SST-2/train.tsv --dev SST-2/dev.tsv --out tuned
    """


@dataclass(frozen=True)
class ExampleFiles:
    """The example files of a task, its columns and metrics."""

    train: Annotated[str, typer.Option(metavar="FILE", show_default=False, help="Training examples.")]
    dev: Annotated[str, typer.Option(metavar="FILE", show_default=False, help="Validation examples.")]
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Test examples, scored once at the end.")] = None
    columns: Annotated[str | None, typer.Option(metavar="FIELD=COLUMN,...", help="Columns of a table with other names: "
                                                "text=review,label=stars; or column numbers, if there is no header: "
                                                "text=1,label=2.")] = None
    metric: Annotated[list[str] | None, typer.Option(help="Metric; may be repeated. The first one decides.")] = None

    def files(self) -> dict[str, str]:
        return {"train": self.train, "dev": self.dev, **({"test": self.test} if self.test else {})}


@dataclass(frozen=True)
class TrialOptions:
    """Repeated training with other learning rates or seeds."""

    rates: Annotated[str | None, typer.Option(metavar="R,R,...", help="Try these learning rates; keep the one with the "
                                                                      "best dev score.")] = None
    restarts: Annotated[int, typer.Option(metavar="K", help="Train with K seeds; report best, mean and std.")] = 1
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Also score the ensemble of the restarts (mean "
                                                              "logits).")] = False


@dataclass(frozen=True)
class FeatureOptions:
    """A BiLSTM on a mix of the network's hidden states, with the network frozen or trained too."""

    features: Annotated[bool, typer.Option("--features", help="Freeze the network and train a BiLSTM on its hidden "
                                                              "states.")] = False
    layers: Annotated[str | None, typer.Option(
        metavar="all|last4|...", show_default="all with --features", help="Layers that the BiLSTM reads: a learned "
        "weighted sum (all, last4), a concatenation (concat4, embedding+last), or one layer (last, before-last, "
        "embedding). Without --features the network is trained too.")] = None

    def selected_layers(self) -> str | None:
        """The layers, or None if the task has a head of its own."""
        return "all" if self.features and self.layers is None else self.layers


@dataclass(frozen=True)
class VectorOptions:
    """A new model over static word vectors, instead of a trained one."""

    vectors: Annotated[str | None, typer.Option(metavar="FILE", help="Word vectors (word2vec, GloVe, fastText): train "
                                                "a new model over them. --model is then its recipe [default: "
                                                "bilstm].")] = None
    tune_vectors: Annotated[bool, typer.Option("--tune-vectors", help="Train the vectors, too; otherwise they are "
                                               "frozen.")] = False


@computes
def finetune_task(
    context: typer.Context, examples: ExampleFiles, run: NewRun, budget: TaskBudget,
    trials: TrialOptions, features: FeatureOptions, static: VectorOptions, encoded: FileEncoding,
    model: StartOption = None,
    changes: ChangesArgument = None,
    class_weights: Annotated[str | None, typer.Option(metavar="balanced|A,B,...", help="Loss weights of the classes: "
                                                      "inverse frequency, or one number per class in order.")] = None,
    style: Annotated[str | None, typer.Option(metavar="gpt|plain", show_default="gpt for a GPT", help="Format for a "
                                              "causal LM: gpt adds special tokens and an auxiliary LM loss; plain has "
                                              "neither.")] = None,
    find_rate: FindRateOption = False, no_baseline: NoBaselineOption = False, json: JsonOption = False,
) -> None:
    """Fine-tune a model on this task, with a table with named columns (.tsv, .csv, .jsonl) or the official files of a
    data set. `stemma resume` continues an interrupted run.

    Example: stemma finetune classify --model run --train train.tsv --dev dev.tsv --out tuned

    Example: stemma finetune sst2 --model run --train SST-2/train.tsv --dev SST-2/dev.tsv --out tuned --epochs 2

    Example: stemma finetune cola --model run --train train.tsv --dev dev.tsv --out best --rates 1e-5,3e-5 --restarts 3

    Example: stemma finetune tag --model run --train train.txt --dev dev.txt --out tuned training.layer_decay=0.9

    Example: stemma finetune pair --model run --train train.tsv --dev dev.tsv --out tuned --find-rate

    Example: stemma finetune tag --vectors glove.txt --train train.txt --dev dev.txt --out tagger
    """
    from stemma.tasks.datasets import task_kind_of
    from stemma.tasks.runs.baseline_scores import check_has_baseline
    from stemma.tasks.runs.finetune import TaskArguments, finetune
    from stemma.tasks.runs.sweep import Sweep

    if no_baseline:
        check_has_baseline(task_kind_of(str(context.info_name)))
    layers = features.selected_layers()
    values = {} if class_weights is None else {"balance": class_weights}
    task = TaskArguments(str(context.info_name), examples.files(), parse_columns(examples.columns),
                         examples.metric or (), values, layers, style, static.vectors, static.tune_vectors,
                         frozen=features.features)
    result = finetune(task, model, run.out, **budget.options(), **run.options(), changes=changes or (),
                      reading=encoded.reading(), trials=Sweep.from_cli(**vars(trials)), find_rate=find_rate,
                      baseline=not no_baseline,
                      show=sys.stderr.isatty())
    finish(result, run.out, json)


DEFAULT_KIND = next(iter(registry.BUILT_IN["task"]))  # every other kind and data set has the options of this verb


def load_named_plugins(args: list[str]) -> None:
    """Load the files of `--plugin` before the verb is resolved: they may register it."""
    from stemma.plugins import use_plugin

    for word, following in zip(args, [*args[1:], ""], strict=True):
        if word == "--plugin" and following:
            use_plugin(following)
        elif word.startswith("--plugin="):
            use_plugin(word.partition("=")[2])


def parse_columns(columns: str | None) -> dict[str, str] | None:
    """text=review,label=stars -> {"text": "review", "label": "stars"}"""
    if columns is None:
        return None
    pairs = [pair.partition("=") for pair in columns.split(",")]
    if any(not field.strip() or not column.strip() for field, _, column in pairs):
        raise UserError(f'--columns is "{columns}"; write field=column, such as text=review,label=stars.')
    return {field.strip(): column.strip() for field, _, column in pairs}


_Pairs = list[str] | None


@dataclass(frozen=True)
class PairFiles:
    """The files of source and target texts."""

    train: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False, help="Training pairs: .tsv, .csv, "
                                          ".jsonl, or sources with --train-target.")] = None
    train_target: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False,
                                                 help="Targets of --train, line by line.")] = None
    dev: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False,
                                        help="Validation pairs.")] = None
    dev_target: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False, help="Targets of --dev.")] = None
    test: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False,
                                         help="Test pairs, scored once at the end.")] = None
    test_target: Annotated[_Pairs, typer.Option(metavar="FILE", show_default=False, help="Targets of --test.")] = None


@finetune_app.command()
@computes
def seq2seq(
    model: ModelOption, pairs: PairFiles, run: NewRun, budget: TaskBudget, pairing: PairOptions, encoded: FileEncoding,
    changes: ChangesArgument = None,
    tasks: Annotated[str | None, typer.Option(metavar="PLAN.toml", show_default=False, help="Several tasks and their "
                                              "sampling rates, instead of the files above.")] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help='Put this before every source, such as '
                                                             '"summarize: ".')] = "",
    beams: Annotated[int, typer.Option(metavar="N", help="Beam size when scoring.")] = 4,
    find_rate: FindRateOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a model to generate a target text from a source text. `stemma resume` continues an interrupted run.

    In JSON lines a source may be a list of sentences, and a target a list of reference texts.

    Example: stemma finetune seq2seq --model run --train train.en --train-target train.de --dev dev.tsv --out tuned

    Example: stemma finetune seq2seq --model run --train abstracts.jsonl --dev dev.jsonl --prefix "summarize: " --out s

    Example: stemma finetune seq2seq --model run --train squad.tsv --dev dev.tsv --columns context,question --out asks

    Example: stemma finetune seq2seq --model run --tasks plan.toml --out all
    """
    from stemma.tasks.runs.seq2seq_data import SPLITS, data_from_cli

    files: dict[str, _Pairs] = vars(pairs)
    used = [f"--{key.replace('_', '-')}" for key, paths in files.items() if paths]
    used += [name for name, is_set in (("--prefix", prefix), ("--columns", pairing.is_set["--columns"])) if is_set]
    if tasks is not None and used:
        raise UserError(f"--tasks says all about its tasks; leave out {', '.join(used)}, or put it into {tasks}.")
    missing = [f"--{name}" for name in SPLITS[:2] if not files[name]]
    if tasks is None and missing:
        raise UserError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: name files of "
                        "pairs for training and for scoring, or a plan of several tasks with --tasks.")
    if tasks is None:
        data = data_from_cli({key: paths or [] for key, paths in files.items()}, prefix, pairing.columns)
    else:
        from stemma.tasks.runs.multitask_plan import read_multitask_plan

        data = read_multitask_plan(tasks).seq2seq_data()

    from stemma.tasks.runs.seq2seq import finetune_seq2seq

    reading = replace(encoded.reading(), empty=pairing.empty)
    result = finetune_seq2seq(model, data, run.out, **budget.options(), **run.options(), beams=beams,
                              changes=changes or (), reading=reading, find_rate=find_rate, show=sys.stderr.isatty())
    finish(result, run.out, json)


for _kind in registry.BUILT_IN["task"]:
    if _kind != seq2seq.__name__:  # seq2seq has its own options
        finetune_app.command(_kind)(finetune_task)
