"""`stemma pretrain` and `stemma resume`: a run from its first line on disk to its finished model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.files import refuse_non_empty, write_atomically
from stemma.lineage import Recipe, recipe
from stemma.training.budget import Budget
from stemma.training.run import MODEL, RECIPE, RESULT, Plan, Reading, create_run, locate, read_result, read_run
from stemma.training.source import adopt_tokenizer, corpus_from_text

if TYPE_CHECKING:
    from stemma.network.network import Network

Notice = Callable[[str], None]


def pretrain(chosen: Recipe | str, corpus: str | Path | Sequence[str], out: str | Path, *, steps: int | None = None,
             tokens: int | None = None, minutes: float | None = None, start: str | Path | None = None, seed: int = 0,
             changes: Sequence[str] = (), reading: Reading | None = None, overwrite: bool = False,
             tensorboard: bool = False, show: bool = False, notice: Notice = lambda text: None) -> dict[str, Any]:
    """Pre-train a recipe on a corpus or on raw text; returns what `--json` prints."""
    run = Path(out)
    refuse_non_empty(run, overwrite)
    wanted = recipe(chosen, changes) if isinstance(chosen, str) else chosen
    budget = Budget.choose(steps, tokens, minutes, wanted.settings.training.steps)
    folder, text = locate([str(corpus)] if isinstance(corpus, str | Path) else [str(path) for path in corpus])
    origin = None if start is None else str(Path(start).absolute()) if Path(start).exists() else str(start)
    plan = Plan(folder, text, budget, seed, origin, reading or Reading(), tensorboard=tensorboard)
    if folder:
        opened = Corpus.open(folder)
        wanted = adopt_tokenizer(wanted, opened)
        plan = replace(plan, fingerprint=opened.fingerprint)
    create_run(run, wanted, plan, overwrite)
    try:
        return _carry_out(run, show, notice)
    except UserError:
        if not any((run / "checkpoints").glob("step-*")):
            shutil.rmtree(run)  # nothing was trained: leave nothing behind
        raise


def resume(out: str | Path, *, show: bool = False, notice: Notice = lambda text: None) -> dict[str, Any]:
    """Go on with a run that was interrupted; a finished one says what it reported then."""
    run = Path(out)
    read_run(run)
    finished = read_result(run)
    if finished is not None:
        notice(f"{run} is finished; nothing to do.")
        return finished
    return _carry_out(run, show, notice)


def _carry_out(run: Path, show: bool, notice: Notice) -> dict[str, Any]:
    wanted, plan = read_run(run)
    corpus = _open_corpus(run, wanted, plan, notice)
    wanted, plan = read_run(run)

    import torch  # only now: the run folder is complete

    from stemma.exchange.model import Model
    from stemma.exchange.save import save
    from stemma.objectives import build_network, check_needs
    from stemma.training.checkpoints import latest_checkpoint
    from stemma.training.loop import Loop

    check_needs(wanted, corpus)
    torch.manual_seed(plan.seed)
    fresh = latest_checkpoint(run) is None
    if plan.start and fresh:
        wanted, network = _start_from(plan.start, wanted, corpus, notice)
        write_atomically(run / RECIPE, wanted.to_toml())
    else:
        network = build_network(wanted, corpus.tokenizer.vocab_size)
    loop = Loop(run, wanted, corpus, network, plan.budget, plan.seed, notice, plan.tensorboard, show)
    if show:
        notice(f"{wanted.label} · {network.parameter_count() / 1e6:.1f} M parameters · {corpus.tokens / 1e6:.2f} M tokens "
               f"· {str(loop.precision).removeprefix('torch.')} on {loop.threads} cores")
    result = {"run": str(run), **loop.train()}
    save(Model(wanted, corpus.tokenizer, network.eval()), run / MODEL, overwrite=True)
    write_atomically(run / RESULT, json.dumps(result, indent=1))
    return result


def _open_corpus(run: Path, wanted: Recipe, plan: Plan, notice: Notice) -> Corpus:
    """The run's corpus; made from raw text at the first start, and the same one ever after."""
    if plan.corpus is not None:
        corpus = Corpus.open(plan.corpus)
    else:
        corpus = corpus_from_text(plan.text, wanted, plan.reading, notice)
    if plan.fingerprint is None:
        write_atomically(run / RECIPE, adopt_tokenizer(wanted, corpus).to_toml())
        replace(plan, fingerprint=corpus.fingerprint).write(run)
    elif plan.fingerprint != corpus.fingerprint:
        raise UserError(f"the corpus of {run} is not the one it was started with (its text or its vocabulary "
                        "changed); bring the old one back, or start a new run with `stemma pretrain --from`.")
    return corpus


def _start_from(where: str, wanted: Recipe, corpus: Corpus, notice: Notice) -> tuple[Recipe, Network]:
    """The weights of a finished model under this recipe's objectives; its sizes replace the recipe's."""
    from stemma.exchange.load import load
    from stemma.objectives import build_network

    model = load(where)
    for text in model.notices:
        notice(text)
    theirs = model.tokenizer
    if theirs is not None and theirs.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(f"{where} and the corpus have different vocabularies ({theirs.vocab_size:,} and "
                        f"{corpus.tokenizer.vocab_size:,} tokens); build the corpus with `--tokenizer {where}`.")
    if model.network.vocabulary != corpus.tokenizer.vocab_size:
        raise UserError(f"{where} has {model.network.vocabulary:,} tokens and the corpus {corpus.tokenizer.vocab_size:,};"
                        " build the corpus with that model's tokenizer.")
    wanted = adopt_network(wanted, model.recipe, Path(where).name)
    network = build_network(wanted, corpus.tokenizer.vocab_size)
    missing, unexpected = network.load_state_dict(model.network.state_dict(), strict=False)
    new = sorted({".".join(name.split(".")[:2]) for name in missing})
    if new:
        notice(f"not in {where}, so started at random: {', '.join(new)}")
    unused = sorted({".".join(name.split(".")[:2]) for name in unexpected})
    if unused:
        notice(f"in {where} but not needed by {wanted.label}: {', '.join(unused)}")
    return wanted, network


def adopt_network(wanted: Recipe, theirs: Recipe, origin: str) -> Recipe:
    """`wanted` with the network of the model it starts from; what the command line asks for must agree with it."""
    from stemma.schema.layers import flatten

    before, after = flatten(wanted.values["network"]), flatten(theirs.values["network"])
    adjustable = ("dropout", "attention.dropout")  # may differ without touching a weight
    changed = {key: value for key, value in after.items() if before.get(key) != value and key not in adjustable}
    fought = [(f"network.{key} = {before.get(key)}", f"{origin} has {value}") for key, value in changed.items()
              if wanted.origin.get(f"network.{key}") == "command line"]
    if fought:
        raise UserError(f"the network to start from ({origin}) is not the one you ask for", fought)
    return wanted.with_changes({f"network.{key}": value for key, value in changed.items()}, origin) if changed else wanted
