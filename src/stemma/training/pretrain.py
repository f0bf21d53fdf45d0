"""`stemma pretrain` and `stemma resume`: a run from its first line on disk to its finished model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.corpus.directions import write_directions
from stemma.corpus.shards import Corpus
from stemma.device import takes_device
from stemma.errors import UserError, counted
from stemma.files import folder_atomically, refuse_non_empty
from stemma.lineage import Recipe, recipe
from stemma.stored import store, store_object, verify
from stemma.text.readers import own_readers
from stemma.text.tokenizer import Tokenizer
from stemma.training.budget import Budget
from stemma.training.callbacks import takes_callbacks
from stemma.training.run import (
    MODEL,
    RECIPE,
    RESULT,
    Plan,
    Reading,
    create_run,
    is_corpus,
    locate,
    read_run,
)
from stemma.training.source import adopt_tokenizer, corpus_from_text, locate_target
from stemma.training.working import beginning, finished, working

if TYPE_CHECKING:
    from stemma.exchange.model import Model
    from stemma.training.loop import Loop

logger = logging.getLogger(__name__)

# What a run does, if not pre-training on a corpus: called with the run, and whether to show progress.
Work = Callable[[Path, bool], dict[str, Any]]


@takes_device
@takes_callbacks
def pretrain(chosen: Recipe | str, corpus: str | Path | Sequence[str], out: str | Path, *, steps: int | None = None,
             tokens: int | None = None, minutes: float | None = None, start: str | Path | None = None, seed: int = 0,
             changes: Sequence[str] = (), reading: Reading | None = None, overwrite: bool = False,
             target: str | Path | Sequence[str] = (), tensorboard: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), show: bool = False) -> dict[str, Any]:
    """Pre-train a recipe on a corpus or on raw text, with `target` on two files whose lines are pairs; returns what
    `--json` prints. `callbacks` are objects that hear of every step (`stemma.Callback`).

        stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000)["validation_loss"]
    """
    run = Path(out)
    refuse_non_empty(run, overwrite)
    wanted = recipe(chosen, changes) if isinstance(chosen, str) else chosen
    if start is None and wanted.settings.training.fresh:
        raise UserError("training.fresh draws the highest layers of a model anew; say of which one with --from, or "
                        "leave it out.")
    budget = Budget.choose(steps, tokens, minutes, wanted.settings.training.steps)
    folder, text = locate(_paths(corpus))
    other = locate_target(wanted, folder, text, _paths(target))
    origin = None if start is None else str(Path(start).absolute()) if Path(start).exists() else str(start)
    plan = Plan(folder, text, budget, seed, origin, reading or Reading(), tensorboard=tensorboard,
                target=other, split_first=True)
    if folder:
        opened = Corpus.open(folder)
        wanted = adopt_tokenizer(wanted, opened)
        plan = replace(plan, fingerprint=opened.fingerprint)
    create_run(run, wanted, plan, overwrite)
    return begin(run, show)


def begin(run: Path, show: bool, work: Work | None = None) -> dict[str, Any]:
    """Carry out a run that stands on disk and has not been started."""
    with beginning(run):
        return (work or _train)(run, show)


def _paths(given: str | Path | Sequence[str]) -> list[str]:
    return [str(given)] if isinstance(given, str | Path) else [str(path) for path in given]


def resume(out: str | Path, *, show: bool = False,
           work: Work | None = None) -> dict[str, Any]:
    """Go on with a run that was interrupted; a finished one says what it reported then."""
    run = Path(out)
    if (known := finished(run)) is not None:
        return known
    with working(run):
        return (work or _train)(run, show)


@dataclass(frozen=True)
class Training:
    """A run that is opened: its loop, ready to go on, and what is done when that is at its end."""

    run: Path
    plan: Plan
    recipe: Recipe
    corpus: Corpus
    loop: Loop

    def finish(self, told: dict[str, object]) -> dict[str, Any]:
        """The model and what is reported of it, on disk."""
        result = self.save(told)[1]
        store_object(self.run / RESULT, result)
        return result

    def save(self, told: dict[str, object]) -> tuple[Model, dict[str, Any]]:
        """The model, which is on disk now, and what is to be reported of it: with that on disk, the run is finished."""
        from stemma.exchange.model import Model
        from stemma.exchange.save import write_model
        from stemma.training.start import with_pooler

        result = {"run": str(self.run), **told}
        model = Model(self.recipe, self.corpus.tokenizer, self.loop.network.eval())
        if self.plan.start and self.plan.task is None:
            model = with_pooler(model, self.plan.start)
        with folder_atomically(self.run / MODEL, overwrite=True) as place:
            write_model(model, place)
            write_directions(self.corpus, place)
        return model, result


def _train(run: Path, show: bool) -> dict[str, Any]:
    training = open_training(run, show)
    return training.finish(training.loop.train())


def open_training(run: Path, show: bool) -> Training:
    """Everything that a run needs, as it stands on disk."""
    wanted, plan = read_run(run)
    corpus = _open_corpus(run, wanted, plan)
    if plan.task is None:  # a fine-tune keeps the model's own, which may have places for more tokens than there are
        wanted = adopt_tokenizer(wanted, corpus)

    import torch  # only now: the run folder is complete

    from stemma.objectives import build_network, build_objectives, check_needs, without_data
    from stemma.training.checkpoints import latest_checkpoint
    from stemma.training.loop import Loop
    from stemma.training.padding import mostly_padding
    from stemma.training.stages import check_stages
    from stemma.training.start import start_from
    from stemma.training.supply import Supply

    begins = latest_checkpoint(run) is None
    if begins:  # once it has begun, its tasks stay the same
        wanted, absent = without_data(wanted, corpus)
        for text in absent:
            logger.warning(text)
        fields = sorted({name for objective in build_objectives(wanted) for name in objective.needs().fields} |
                        {field for name, one in wanted.settings.network.inputs.items() for field in one.fields(name)})
        replace(read_run(run)[1], marks={name: corpus.mark(name) for name in fields}).write(run)
    elif changed := [name for name, mark in plan.marks.items() if corpus.mark(name) != mark]:
        raise UserError(f"the {changed[0]} of {corpus.path} are not those that {run} was started with, so it cannot go "
                        "on exactly; annotate the corpus as before, or start a new run with `stemma pretrain --from`.")
    check_needs(wanted, corpus)
    check_stages(wanted, plan.budget)
    torch.manual_seed(plan.seed)
    if plan.start and begins:
        wanted, network = start_from(plan.start, wanted, corpus)
    else:
        network = build_network(wanted, tokenizer=corpus.tokenizer if begins else None)
    store(run / RECIPE, wanted.to_toml(own_readers(plan.text)))
    supply = Supply(wanted, corpus, build_objectives(wanted), plan.seed)
    loop = Loop(run, wanted, supply, network, plan.budget, plan.seed, plan.tensorboard, show)
    if plan.task is None and (told := supply.too_long()):  # a fine-tune has said it already
        logger.warning(told)
    if begins and (told := mostly_padding(supply)):
        logger.warning(told)
    if show:
        logger.info(f"{wanted.label} · {network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{corpus.tokens / 1e6:.2f} M tokens · {str(loop.precision).removeprefix('torch.')} on "
                    f"{counted(loop.threads, 'core')}")
    return Training(run, plan, wanted, corpus, loop)


def _open_corpus(run: Path, wanted: Recipe, plan: Plan) -> Corpus:
    """The run's corpus; made from raw text at the first start, and the same one ever after."""
    if plan.text:
        corpus = _made_before(plan) or _make(run, wanted, plan)
    else:
        assert plan.corpus is not None
        corpus = Corpus.open(run / plan.corpus)
    if plan.fingerprint is None:
        replace(plan, corpus=str(corpus.path.resolve()), fingerprint=corpus.fingerprint).write(run)
    elif plan.fingerprint != corpus.fingerprint:
        raise UserError(f"the corpus of {run} is not the one it was started with (its text or its vocabulary "
                        "changed); bring the old one back, or start a new run with `stemma pretrain --from`.")
    return corpus


def _made_before(plan: Plan) -> Corpus | None:
    """What the first start made of the text, if the cache still has it; the text itself may have gone since."""
    if plan.corpus is None or not is_corpus(plan.corpus):
        return None
    with suppress(UserError):  # damaged: it is made again
        return Corpus.open(plan.corpus)
    return None


def _make(run: Path, wanted: Recipe, plan: Plan) -> Corpus:
    """A corpus of the raw text, with the tokenizer of the model to start from, or one as the recipe says."""
    for kept in (Path(path) for path in (*plan.text, *plan.target)):
        if kept.parent == run.resolve():  # it came through a pipe
            verify(kept, "start the run again in another folder.")
    if plan.start is None:
        return corpus_from_text(plan.text, wanted, plan.reading, target=plan.target,
                                split_first=plan.split_first)
    from stemma.exchange.load import find_folder

    return corpus_from_text(plan.text, wanted, plan.reading, Tokenizer.load(find_folder(plan.start)),
                            plan.target)
