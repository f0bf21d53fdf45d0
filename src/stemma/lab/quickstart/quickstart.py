"""The whole story on text that every user already has, the documentation inside their own Python: no download.

Four stages, each complete on disk before the next one begins: the text, a vocabulary and a corpus, a pre-training run
like any other (`stemma fill` and `stemma resume` work on it), and what it was worth on text that was held out. A
small state file says which are done, so an interrupted quickstart goes on where it was.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.errors import Interrupted, UserError, counted
from stemma.files import NoSpace, folder_atomically, write_atomically
from stemma.json_files import damage
from stemma.lab.quickstart import harvest, probe
from stemma.lineage import recipe, roles_needed
from stemma.progress import stage
from stemma.stored import list_finished, read_object, store_object, verify
from stemma.text.tokenizer import Tokenizer
from stemma.text.train import train_tokenizer
from stemma.training.budget import Budget
from stemma.training.pretrain import pretrain, resume
from stemma.training.run import PLAN

STATE, RESULT, REPORT = "quickstart.json", "result.json", "report.html"
TRAIN, HELD_OUT, TOKENIZER, CORPUS, RUN = "train.txt", "held-out.txt", "tokenizer", "corpus", "run"
HELD_OUT_SHARE = 0.1
VOCABULARY = 4000
RECIPE = "bert@tiny"
# What a few minutes need that BERT's four days did not, and why.
CHANGES = (
    "remove=objective.next_sentence",
    "objective.masked_lm.rate=0.3",
    "objective.masked_lm.mask=1",
    "objective.masked_lm.random=0",
    "objective.masked_lm.dynamic=true",
    "corpus.packing=stream",
    "corpus.short_probability=0",
    "corpus.sequence_length=48",
    "network.heads=8",
    "network.norm.place=pre",
    "network.embedding.norm=false",
    "network.embedding.scale=true",
    "network.position.kind=sinusoidal",
    "network.position.maximum=512",
    "network.initialization.spread=0.1",
    "network.dropout=0",
    "network.attention.dropout=0",
    "training.batch_size=24",
    "training.learning_rate=2e-3",
    "training.warmup_steps=50",
    "training.optimizer.epsilon=1e-9",
    "training.checkpoint_every=1000",
)
REASONS = {
    "objective.next_sentence": "a few minutes are enough for one question",
    "objective.masked_lm.dynamic": "new masks at every pass: the text is read many times",
    "objective.masked_lm": "more hidden words a step, each of them a real question",
    "corpus": "no padding, and attention that has little to look through",
    "network.heads": "more heads, more chances that one finds the neighbours early",
    "network.norm": "gradients reach every layer from the first step",
    "network.embedding": "words and places enter at the same strength",
    "network.position": "the step to a neighbour is the same everywhere, so it is learnt once",
    "network.initialization": "scores of attention differ from the start, where 0.02 leaves them all alike",
    "network.dropout": "far from memorising in a few minutes",
    "network.attention": "far from memorising in a few minutes",
    "tokenizer": "the corpus brings its own vocabulary; a small one is seen often enough to be learnt",
    "training": "many small steps",
}
PROBE, STRENGTH = "replaced_words", 6
FILLED = 6


@dataclass(frozen=True)
class Wishes:
    """What was asked for; an interrupted quickstart can only go on under the same wishes."""

    minutes: float
    seed: int
    seeds: int
    labels: int
    tests: int


def quickstart(out: str | Path = "quickstart", *, minutes: float = 4.0, seed: int = 0, seeds: int = 3,
               labels: int = 400, tests: int = 1000, overwrite: bool = False, show: bool = False,
               say: Callable[[str], None] = lambda text: None,
               notice: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run what is not yet done of the story and return its numbers; `say` hears the beginning of each stage."""
    folder, wishes = Path(out), Wishes(minutes, seed, seeds, labels, tests)
    Budget.choose(None, None, minutes, 1)  # refuses what is no budget before anything is written
    stages = Stages.begin(folder, wishes, overwrite)
    try:
        with stages.run("text") as due:
            if due:
                say("reading the documentation of your Python")
                stages.note("text", _write_text(folder, seed))
        with stages.run("corpus") as due:
            if due:
                say("learning a vocabulary and building the corpus")
                stages.note("corpus", _build_corpus(folder, notice))
        with stages.run("pretrain") as due:
            if due:
                say(f"pre-training {RECIPE} with {len(CHANGES)} changes for {counted(minutes, 'minute')}")
                stages.note("pretrain", _pretrain(folder, wishes, show, notice))
        with stages.run("worth") as due:
            if due:
                say("measuring what it was worth on held-out text")
                stages.note("worth", _measure(folder, wishes, say))
    except UserError as error:
        if not stages.found:
            shutil.rmtree(folder)  # nothing was made: leave nothing behind
        if isinstance(error, NoSpace):  # the same command goes on, and not only with the run inside
            raise NoSpace(error.what) from error
        raise
    except (Interrupted, KeyboardInterrupt) as error:
        reached = str(error).partition(";")[0] or "stopped"
        again = f"stemma quickstart --out {shlex.quote(str(out))}"
        raise Interrupted(f"{reached}; `{again}` goes on from there.") from error
    result = stages.result() | {"out": str(out), "report": str(folder / REPORT), "recipe": RECIPE,
                                "changes": list(CHANGES), "commands": commands(folder, wishes)}
    from stemma.lab.quickstart.quickstart_page import write_page
    from stemma.lab.quickstart.verdict import verdicts

    result["verdicts"] = verdicts(result)
    write_page(result, folder, REASONS)
    write_atomically(folder / RESULT, json.dumps(result, indent=1))
    return result


class Stages:
    """Which stages are complete, what each found, and how long it took."""

    def __init__(self, folder: Path, wishes: Wishes, found: dict[str, Any]):
        self.folder, self.wishes, self.found = folder, wishes, found

    @classmethod
    def begin(cls, folder: Path, wishes: Wishes, overwrite: bool) -> Stages:
        """A new folder, or one in which a quickstart was interrupted; anything else is the user's and stays."""
        known = (folder / STATE).is_file()
        if overwrite or not known:
            with folder_atomically(folder, overwrite=overwrite and known, checksums=False) as place:
                cls(place, wishes, {})._write()
            return cls(folder, wishes, {})
        if (folder / RESULT).is_file():
            raise UserError(f"{folder} holds a finished quickstart; look at {folder / REPORT}, choose another --out, "
                            "or add --overwrite.")
        advice = "add --overwrite to begin anew."
        stored = read_object(folder / STATE, advice)
        with damage(folder / STATE, advice):
            if stored["wishes"] != asdict(wishes):
                before = f"--minutes {stored['wishes']['minutes']:g} --seed {stored['wishes']['seed']}"
                raise UserError(f"the quickstart in {folder} was begun with other settings ({before}); go on with "
                                "those, or add --overwrite.")
            return cls(folder, wishes, dict(stored["found"]))

    @contextmanager
    def run(self, name: str) -> Iterator[bool]:
        began, due = time.perf_counter(), name not in self.found
        with stage(f"quickstart, {name}", bar="none"):
            yield due
        if due:
            self.found[name]["took"] = time.perf_counter() - began
            self._write()

    def note(self, name: str, found: dict[str, Any]) -> None:
        self.found[name] = found

    def result(self) -> dict[str, Any]:
        found = {name: self.found[name] for name in ("text", "corpus")} | {"pretraining": self.found["pretrain"]}
        return {**asdict(self.wishes), **found, **self.found["worth"],
                "took": sum(stage["took"] for stage in self.found.values())}

    def _write(self) -> None:
        state = {"wishes": asdict(self.wishes), "found": self.found}
        store_object(self.folder / STATE, state)


def commands(folder: Path, wishes: Wishes) -> list[str]:
    """The same by hand."""
    text, tokenizer, corpus, run = (shlex.quote(str(folder / name)) for name in (TRAIN, TOKENIZER, CORPUS, RUN))
    return [f"stemma tokenizer train {text} --for {RECIPE} --vocab-size {VOCABULARY} --out {tokenizer}",
            f"stemma corpus build {text} --tokenizer {tokenizer} --sentences line --out {corpus}",
            f"stemma pretrain {RECIPE} --corpus {corpus} --out {run} --minutes {wishes.minutes:g} --seed {wishes.seed} "
            + " ".join(CHANGES),
            f'stemma fill {run} "return the [MASK] of the list."']


def _write_text(folder: Path, seed: int) -> dict[str, Any]:
    pages = harvest.harvest()
    train, held_out = harvest.split(pages, seed, HELD_OUT_SHARE)
    harvest.write(train, folder / TRAIN)
    harvest.write(held_out, folder / HELD_OUT)
    for name in (TRAIN, HELD_OUT):
        list_finished(folder / name)
    return {"documents": len(train), "words": sum(page.words for page in train),
            "held_out_documents": len(held_out), "held_out_words": sum(page.words for page in held_out)}


def _build_corpus(folder: Path, notice: Callable[[str], None]) -> dict[str, Any]:
    chosen = recipe(RECIPE)
    settings = chosen.settings.tokenizer
    tokenizer = train_tokenizer(_lines(folder / TRAIN), settings.kind, VOCABULARY, lowercase=settings.lowercase,
                                roles=roles_needed(chosen), cjk_spacing=settings.cjk_spacing, notice=notice)
    with folder_atomically(folder / TOKENIZER, overwrite=True) as place:
        tokenizer.save(place)
    built = build_corpus([folder / TRAIN], tokenizer, folder / CORPUS, sentences="line", overwrite=True, notice=notice)
    return {"vocabulary": tokenizer.vocab_size, "tokens": built["tokens"], "sentences": built["sentences"],
            "unknown_rate": built["unknown_rate"]}


def _pretrain(folder: Path, wishes: Wishes, show: bool, notice: Callable[[str], None]) -> dict[str, Any]:
    run = folder / RUN
    if (run / PLAN).is_file():
        return resume(run, show=show, notice=notice)
    return pretrain(RECIPE, folder / CORPUS, run, minutes=wishes.minutes, seed=wishes.seed, changes=CHANGES, show=show,
                    notice=notice)


def _measure(folder: Path, wishes: Wishes, say: Callable[[str], None]) -> dict[str, Any]:
    from stemma.exchange.load import load
    from stemma.lab.quickstart import measure
    from stemma.tasks.classify import Settings

    model, corpus = load(folder / RUN), Corpus.open(folder / CORPUS)
    held_out = [line for line in _lines(folder / HELD_OUT) if line]
    with folder_atomically(folder / "held-out", overwrite=True) as place:
        build_corpus([folder / HELD_OUT], Tokenizer.load(folder / TOKENIZER), place / "corpus", sentences="line")
        hidden = measure.hide(Corpus.open(place / "corpus"), model.recipe, wishes.seed)
    masked = measure.guess_by_counting(corpus, hidden) | {"model": measure.guess_by_reading(model, hidden)}
    counts = probe.count_words(_lines(folder / TRAIN))
    probes = [probe.make(PROBE, held_out, counts, wishes.seed + number, wishes.labels, wishes.tests, STRENGTH)
              for number in range(wishes.seeds)]
    settings = Settings()
    starts = measure.compare_starts(model, probes, settings, wishes.seed, say)
    return {"places": int(hidden.scored.sum()), "masked": masked,
            "curve_baselines": measure.validation_baselines(model.recipe, corpus, wishes.seed),
            "probe": {"kind": PROBE, "strength": STRENGTH, "settings": asdict(settings), **starts,
                      "example": _pair(probes[0])},
            "filled": measure.fill_some(model, held_out, FILLED, wishes.seed)}


def _pair(made: probe.Probe) -> dict[str, str]:
    """One sentence as written and one damaged, to show what is asked."""
    return {name: next(text for text, label in made.train if label == wanted)
            for name, wanted in (("intact", probe.INTACT), ("damaged", probe.DAMAGED))}


def _lines(path: Path) -> Sequence[str]:
    verify(path, "add --overwrite to begin anew.")
    return path.read_text(encoding="utf-8").splitlines()
