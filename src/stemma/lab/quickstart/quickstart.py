"""The whole story on text that every user already has, the documentation inside their own Python: no download.

Four stages, each complete on disk before the next one begins: the text, a vocabulary and a corpus, a pre-training run
like any other (`stemma fill` and `stemma resume` work on it), and what it was worth on text that was held out. The
last two are an experiment of the lab (`starts.py`); what only a quickstart measures comes on top. A small state file
says which stages are done, so an interrupted quickstart goes on where it was.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.device import choose_device, takes_device
from stemma.errors import Interrupted, UserError, counted
from stemma.files import NoSpace, folder_atomically, write_atomically
from stemma.json_files import damage
from stemma.lab.quickstart import harvest, probe, speed
from stemma.lineage import recipe, roles_needed
from stemma.notes import silenced
from stemma.progress import stage
from stemma.stored import list_finished, read_object, store_object, verify
from stemma.text.tokenizer import Tokenizer
from stemma.text.train import train_tokenizer
from stemma.training.budget import Budget
from stemma.training.run import read_run

if TYPE_CHECKING:
    from stemma.lab.work import Lab

STATE, RESULT, REPORT = "quickstart.json", "result.json", "report.html"
TRAIN, HELD_OUT, TOKENIZER, CORPUS, RUN, TASK = "train.txt", "held-out.txt", "tokenizer", "corpus", "run", "task"
LAB = "lab"  # the experiment, its cells and its results
HELD_OUT_SHARE = 0.1
RECIPE = "modernbert@tiny"
# What a few minutes and a small text need besides; `explained.py` says why.
CHANGES = (
    "tokenizer.kind=wordpiece",
    "tokenizer.vocab_size=4000",
    "tokenizer.lowercase=true",
    "corpus.sequence_length=48",
    "objective.masked_lm.mask=1",
    "objective.masked_lm.random=0",
    "training.batch_size=24",
    "training.checkpoint_every=1000",
    "training.keep_checkpoints=1",
)
PROBE, STRENGTH = "replaced_words", 6
FILLED = 6


@dataclass(frozen=True)
class Wishes:
    """What was asked for; an interrupted quickstart can only go on under the same wishes."""

    minutes: float | None  # None: as many as this machine needs
    seed: int
    seeds: int
    labels: int
    tests: int


@takes_device
def quickstart(out: str | Path = "quickstart", *, minutes: float | None = None, seed: int = 0, seeds: int = 3,
               labels: int = 400, tests: int = 1000, overwrite: bool = False, device: str | None = None,
               show: bool = False, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run what is not yet done of the story and return its numbers; `say` hears the beginning of each stage.

    Without `minutes` a slow machine pre-trains for longer than the usual.
    """
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
                stages.note("corpus", _build_corpus(folder))
        with stages.run("pretrain") as due:
            if due:
                changed = f" with {counted(len(CHANGES), 'change')}" if CHANGES else ""
                usual = speed.MINUTES if minutes is None else minutes
                say(f"pre-training {RECIPE}{changed} for {counted(usual, 'minute')}")
                stages.note("pretrain", _pretrain(folder, stages, show, say))
        with stages.run("worth") as due:
            if due:
                say("measuring what it was worth on held-out text")
                stages.note("worth", _measure(folder, stages, show, say))
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
                                "changes": list(CHANGES)}
    from stemma.lab.quickstart.explained import explained
    from stemma.lab.quickstart.quickstart_page import write_page
    from stemma.lab.quickstart.usage import usage
    from stemma.lab.quickstart.verdict import verdicts

    result |= {"commands": commands(folder, result["minutes"], seed), "usage": usage(folder / RUN, folder / TASK),
               "diff": explained(read_run(folder / RUN)[0]), "verdicts": verdicts(result)}
    write_page(result, folder)
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
                cls(place, wishes, {}).write()
            return cls(folder, wishes, {})
        if (folder / RESULT).is_file():
            raise UserError(f"{folder} holds a finished quickstart; look at {folder / REPORT}, choose another --out, "
                            "or add --overwrite.")
        advice = "add --overwrite to begin anew."
        stored = read_object(folder / STATE, advice)
        with damage(folder / STATE, advice):
            if stored["wishes"] != asdict(wishes):
                asked = stored["wishes"]["minutes"]
                before = f"{'' if asked is None else f'--minutes {asked:g} '}--seed {stored['wishes']['seed']}"
                raise UserError(f"the quickstart in {folder} was begun with other settings ({before}); go on with "
                                "those, or add --overwrite.")
            found = dict(stored["found"])
            if "pretrain" in found:
                float(found["speed"]["minutes"])  # every report says how long it took, and why
            return cls(folder, wishes, found)

    @contextmanager
    def run(self, name: str) -> Iterator[bool]:
        began, worked, due = time.perf_counter(), time.process_time(), name not in self.found
        with stage(f"quickstart, {name}", bar="none"):
            yield due
        if due:
            self.found[name] |= {"took": time.perf_counter() - began, "cpu": time.process_time() - worked}
            self.write()

    def note(self, name: str, found: dict[str, Any]) -> None:
        self.found[name] = found

    def result(self) -> dict[str, Any]:
        stages = {name: self.found[name] for name in ("text", "corpus", "pretrain", "worth")}
        told = {name: stages[name] for name in ("text", "corpus")} | {"pretraining": stages["pretrain"]}
        return {**asdict(self.wishes), **told, **stages["worth"], "speed": self.found["speed"],
                "minutes": self.found["speed"]["minutes"], "took": sum(stage["took"] for stage in stages.values()),
                "stages": {name: {key: found[key] for key in ("took", "cpu")} for name, found in stages.items()}}

    def write(self) -> None:
        state = {"wishes": asdict(self.wishes), "found": self.found}
        store_object(self.folder / STATE, state)


def commands(folder: Path, minutes: float, seed: int) -> list[str]:
    """The same by hand."""
    text, tokenizer, corpus, run = (shlex.quote(str(folder / name)) for name in (TRAIN, TOKENIZER, CORPUS, RUN))
    ours, theirs = (chosen.settings.tokenizer for chosen in (recipe(RECIPE, CHANGES), recipe(RECIPE)))
    kind = f" --kind {ours.kind}" if ours.kind != theirs.kind else ""
    case = f" --{'' if ours.lowercase else 'no-'}lowercase" if ours.lowercase != theirs.lowercase else ""
    return [f"stemma tokenizer train {text} --for {RECIPE}{kind}{case} --vocab-size {ours.vocab_size} --out "
            f"{tokenizer}",
            f"stemma corpus build {text} --tokenizer {tokenizer} --sentences line --out {corpus}",
            " ".join(["stemma pretrain", RECIPE, "--corpus", corpus, "--out", run, f"--minutes {minutes:g}",
                      f"--seed {seed}", *map(shlex.quote, CHANGES)])]


def _write_text(folder: Path, seed: int) -> dict[str, Any]:
    pages = harvest.harvest()
    train, held_out = harvest.split(pages, seed, HELD_OUT_SHARE)
    harvest.write(train, folder / TRAIN)
    harvest.write(held_out, folder / HELD_OUT)
    for name in (TRAIN, HELD_OUT):
        list_finished(folder / name)
    return {"documents": len(train), "words": sum(page.words for page in train),
            "held_out_documents": len(held_out), "held_out_words": sum(page.words for page in held_out)}


def _build_corpus(folder: Path) -> dict[str, Any]:
    chosen = recipe(RECIPE, CHANGES)
    settings = chosen.settings.tokenizer
    tokenizer = train_tokenizer(_lines(folder / TRAIN), settings.kind, settings.vocab_size,
                                lowercase=settings.lowercase, roles=roles_needed(chosen),
                                cjk_spacing=settings.cjk_spacing)
    with folder_atomically(folder / TOKENIZER, overwrite=True) as place:
        tokenizer.save(place)
    built = build_corpus([folder / TRAIN], tokenizer, folder / CORPUS, sentences="line", overwrite=True)
    return {"vocabulary": tokenizer.vocab_size, "tokens": built["tokens"], "sentences": built["sentences"],
            "unknown_rate": built["unknown_rate"]}


def _pretrain(folder: Path, stages: Stages, show: bool, say: Callable[[str], None]) -> dict[str, Any]:
    from stemma.lab.cell_work import Work

    def found(told: dict[str, Any]) -> None:
        """How long it takes is decided once, so that an interrupted run ends where it would have ended."""
        stages.note("speed", told)
        stages.write()
        say(told["said"])

    asked = stages.wishes.minutes
    training = None if "speed" in stages.found else partial(speed.train_and_look, asked=asked, note=found)
    lab, _ = _lab(folder, stages)
    return Work(lab.experiment, lab.shared, lab.costs, show, training).train(lab.cells[0])


def _measure(folder: Path, stages: Stages, show: bool, say: Callable[[str], None]) -> dict[str, Any]:
    from stemma.exchange.load import load
    from stemma.lab.quickstart import measure, starts
    from stemma.lab.work import work_on

    wishes = stages.wishes
    with silenced():
        lab, probes = _lab(folder, stages)
    say(f"fine-tuning from pre-trained and from random weights, {counted(wishes.seeds, 'seed')} each")
    with silenced():  # its notes are for experiments that are read by themselves
        work_on(lab, 1, show)
    model, corpus = load(folder / RUN, choose_device()), Corpus.open(folder / CORPUS)
    held_out = [line for line in _lines(folder / HELD_OUT) if line]
    with folder_atomically(folder / "held-out", overwrite=True) as place:
        with silenced():
            build_corpus([folder / HELD_OUT], Tokenizer.load(folder / TOKENIZER), place / "corpus", sentences="line")
        hidden = measure.hide(Corpus.open(place / "corpus"), model.recipe, wishes.seed)
    masked = measure.guess_by_counting(corpus, hidden) | {"model": measure.guess_by_reading(model, hidden)}
    return {"places": int(hidden.scored.sum()), "masked": masked,
            "curve_baselines": measure.validation_baselines(model.recipe, corpus, wishes.seed),
            "probe": {"kind": PROBE, "strength": STRENGTH, "settings": asdict(starts.Settings()),
                      **starts.learnt(lab, probes, say), "example": _pair(probes[0])},
            "filled": measure.fill_some(model, held_out, FILLED, wishes.seed)}


def _lab(folder: Path, stages: Stages) -> tuple[Lab, list[probe.Probe]]:
    """The experiment in its folder, and the examples of each round; its budget is what was asked for until the speed of
    the machine decides."""
    from stemma.lab.quickstart.starts import experiment
    from stemma.lab.work import open_lab

    wishes, counts = stages.wishes, probe.count_words(_lines(folder / TRAIN))
    held_out = [line for line in _lines(folder / HELD_OUT) if line]
    tasks = [folder / (f"{TASK}-{number + 1}" if number else TASK) for number in range(wishes.seeds)]
    probes = [probe.make(PROBE, held_out, counts, wishes.seed + number, wishes.labels, wishes.tests, STRENGTH)
              for number in range(wishes.seeds)]
    for made, place in zip(probes, tasks, strict=True):
        made.write(place)
    minutes = stages.found["speed"]["minutes"] if "speed" in stages.found else wishes.minutes or speed.MINUTES
    asked = experiment(recipe(RECIPE, CHANGES), folder / RUN, folder / CORPUS, tasks, minutes, wishes.seed)
    return open_lab(asked, folder / LAB, False), probes


def _pair(made: probe.Probe) -> dict[str, str]:
    """One sentence as written and one damaged, to show what is asked."""
    return {name: next(text for text, label in made.train if label == wanted)
            for name, wanted in (("intact", probe.INTACT), ("damaged", probe.DAMAGED))}


def _lines(path: Path) -> Sequence[str]:
    verify(path, "add --overwrite to begin anew.")
    return path.read_text(encoding="utf-8").splitlines()
