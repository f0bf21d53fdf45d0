"""`stemma pretrain` and `stemma resume`: a run from its first line on disk to its finished model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.atomic_files import atomic_folder, check_output_path
from stemma.checksummed_files import verify_file, write_file, write_object
from stemma.corpus.corpus import Corpus
from stemma.corpus.translation_direction import write_directions
from stemma.device import accepts_device
from stemma.errors import UserError, pluralize
from stemma.recipe_loading import Recipe, recipe
from stemma.text.readers import plugin_readers
from stemma.text.tokenizer import Tokenizer
from stemma.training.budget import Budget
from stemma.training.callbacks import accepts_callbacks
from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, locate_target
from stemma.training.run_folder import (
    MODEL,
    RECIPE,
    RESULT,
    RunConfig,
    TextReadingOptions,
    create_run,
    is_corpus,
    read_run,
    resolve_corpus_argument,
)
from stemma.training.run_lock import finished_result, lock_new_run, lock_run

if TYPE_CHECKING:
    from stemma.model import Model
    from stemma.training.trainer import Trainer

logger = logging.getLogger(__name__)

# What a run does, if not pre-training on a corpus: called with the run, and whether to show progress.
RunBody = Callable[[Path, bool], dict[str, Any]]


@accepts_device
@accepts_callbacks
def pretrain(recipe_or_name: Recipe | str, corpus: str | Path | Sequence[str], out: str | Path, *,
             steps: int | None = None,
             tokens: int | None = None, minutes: float | None = None, init_from: str | Path | None = None,
             seed: int = 0,
             changes: Sequence[str] = (), reading: TextReadingOptions | None = None, overwrite: bool = False,
             target: str | Path | Sequence[str] = (), tensorboard: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show_progress: bool = False) -> dict[str, Any]:
    """Pre-train a recipe on a corpus or on raw text, with `target` on two files whose lines are pairs; returns what
    `--json` prints. `callbacks` are objects that hear of every step (`stemma.Callback`).

        stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000)["validation_loss"]
    """
    run = Path(out)
    check_output_path(run, overwrite)
    resolved_recipe = recipe(recipe_or_name, changes) if isinstance(recipe_or_name, str) else recipe_or_name
    if init_from is None and resolved_recipe.settings.training.fresh:
        raise UserError("training.fresh draws the highest layers of a model anew; say of which one with --from, or "
                        "leave it out.")
    budget = Budget.from_options(steps, tokens, minutes, resolved_recipe.settings.training.steps)
    folder, text = resolve_corpus_argument(_paths(corpus))
    other = locate_target(resolved_recipe, folder, text, _paths(target))
    origin = None if init_from is None else str(Path(init_from).absolute()) if Path(init_from).exists() else str(init_from)
    plan = RunConfig(folder, text, budget, seed, origin, reading or TextReadingOptions(), tensorboard=tensorboard,
                target=other, split_first=True)
    if folder:
        opened = Corpus.open(folder)
        resolved_recipe = adopt_tokenizer(resolved_recipe, opened)
        plan = replace(plan, fingerprint=opened.fingerprint)
    create_run(run, resolved_recipe, plan, overwrite)
    return start_run(run, show_progress)


def start_run(run: Path, show_progress: bool, body: RunBody | None = None) -> dict[str, Any]:
    """Carry out a run that stands on disk and has not been started."""
    with lock_new_run(run):
        return (body or _train)(run, show_progress)


def _paths(paths: str | Path | Sequence[str]) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def resume(out: str | Path, *, show_progress: bool = False,
           body: RunBody | None = None) -> dict[str, Any]:
    """Go on with a run that was interrupted; a finished one says what it reported then."""
    run = Path(out)
    if (known := finished_result(run)) is not None:
        return known
    with lock_run(run):
        return (body or _train)(run, show_progress)


@dataclass(frozen=True)
class OpenRun:
    """A run that is opened: its loop, ready to go on, and what is done when that is at its end."""

    run: Path
    plan: RunConfig
    recipe: Recipe
    corpus: Corpus
    trainer: Trainer

    def finish(self, metrics: dict[str, object]) -> dict[str, Any]:
        """The model and what is reported of it, on disk."""
        result = self.save(metrics)[1]
        write_object(self.run / RESULT, result)
        return result

    def save(self, metrics: dict[str, object]) -> tuple[Model, dict[str, Any]]:
        """The model, which is on disk now, and what is to be reported of it: with that on disk, the run is finished."""
        from stemma.exchange.save import write_model
        from stemma.model import Model
        from stemma.training.init_from import with_pooler

        result = {"run": str(self.run), **metrics}
        model = Model(self.recipe, self.corpus.tokenizer, self.trainer.network.eval())
        if self.plan.start and self.plan.task is None:
            model = with_pooler(model, self.plan.start)
        with atomic_folder(self.run / MODEL, overwrite=True) as place:
            write_model(model, place)
            write_directions(self.corpus, place)
        return model, result


def _train(run: Path, show_progress: bool) -> dict[str, Any]:
    training = open_run(run, show_progress)
    return training.finish(training.trainer.train())


def open_run(run: Path, show_progress: bool) -> OpenRun:
    """Everything that a run needs, as it stands on disk."""
    wanted, plan = read_run(run)
    corpus = _open_corpus(run, wanted, plan)
    if plan.task is None:  # a fine-tune keeps the model's own, which may have places for more tokens than there are
        wanted = adopt_tokenizer(wanted, corpus)

    import torch  # only now: the run folder is complete

    from stemma.objectives import build_network, build_objectives, check_requirements, drop_unsupported
    from stemma.training.checkpoints import latest_checkpoint
    from stemma.training.curriculum import check_curriculum
    from stemma.training.init_from import init_from_model
    from stemma.training.padding_check import padding_warning
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    begins = latest_checkpoint(run) is None
    if begins:  # once it has begun, its tasks stay the same
        wanted, absent = drop_unsupported(wanted, corpus)
        for text in absent:
            logger.warning(text)
        fields = sorted({name for objective in build_objectives(wanted)
                         for name in objective.requirements().annotations} |
                        {field for name, one in wanted.settings.network.inputs.items() for field in one.fields(name)})
        replace(read_run(run)[1], marks={name: corpus.annotation_digest(name) for name in fields}).write(run)
    elif changed := [name for name, mark in plan.marks.items() if corpus.annotation_digest(name) != mark]:
        raise UserError(f"the {changed[0]} of {corpus.path} are not those that {run} was started with, so it cannot go "
                        "on exactly; annotate the corpus as before, or start a new run with `stemma pretrain --from`.")
    check_requirements(wanted, corpus)
    check_curriculum(wanted, plan.budget)
    torch.manual_seed(plan.seed)
    if plan.start and begins:
        wanted, network = init_from_model(plan.start, wanted, corpus)
    else:
        network = build_network(wanted, tokenizer=corpus.tokenizer if begins else None)
    write_file(run / RECIPE, wanted.to_toml(plugin_readers(plan.text)))
    supply = PretrainLoader(wanted, corpus, build_objectives(wanted), plan.seed)
    loop = Trainer(run, wanted, supply, network, plan.budget, plan.seed, plan.tensorboard, show_progress)
    if plan.task is None and (told := supply.dropped_pairs_warning()):  # a fine-tune has said it already
        logger.warning(told)
    if begins and (told := padding_warning(supply)):
        logger.warning(told)
    if show_progress:
        logger.info(f"{wanted.label} · {network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{corpus.num_tokens / 1e6:.2f} M tokens · {str(loop.precision).removeprefix('torch.')} on "
                    f"{pluralize(loop.threads, 'core')}")
    return OpenRun(run, plan, wanted, corpus, loop)


def _open_corpus(run: Path, recipe: Recipe, plan: RunConfig) -> Corpus:
    """The run's corpus; made from raw text at the first start, and the same one ever after."""
    if plan.text:
        corpus = _cached_corpus(plan) or _build_corpus(run, recipe, plan)
    else:
        assert plan.corpus is not None
        corpus = Corpus.open(run / plan.corpus)
    if plan.fingerprint is None:
        replace(plan, corpus=str(corpus.path.resolve()), fingerprint=corpus.fingerprint).write(run)
    elif plan.fingerprint != corpus.fingerprint:
        raise UserError(f"the corpus of {run} is not the one it was started with (its text or its vocabulary "
                        "changed); bring the old one back, or start a new run with `stemma pretrain --from`.")
    return corpus


def _cached_corpus(plan: RunConfig) -> Corpus | None:
    """What the first start made of the text, if the cache still has it; the text itself may have gone since."""
    if plan.corpus is None or not is_corpus(plan.corpus):
        return None
    with suppress(UserError):  # damaged: it is made again
        return Corpus.open(plan.corpus)
    return None


def _build_corpus(run: Path, recipe: Recipe, plan: RunConfig) -> Corpus:
    """A corpus of the raw text, with the tokenizer of the model to start from, or one as the recipe says."""
    for kept in (Path(path) for path in (*plan.text, *plan.target)):
        if kept.parent == run.resolve():  # it came through a pipe
            verify_file(kept, "start the run again in another folder.")
    if plan.start is None:
        return build_or_load_corpus(plan.text, recipe, plan.reading, target=plan.target,
                                split_first=plan.split_first)
    from stemma.exchange.load import resolve_model_folder

    return build_or_load_corpus(plan.text, recipe, plan.reading, Tokenizer.load(resolve_model_folder(plan.start)),
                            plan.target)
