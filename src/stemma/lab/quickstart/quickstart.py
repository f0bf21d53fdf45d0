"""The quickstart: pre-train a small model on the documentation inside the user's own Python, and evaluate it.

It has four stages, each complete on disk before the next: the text; tokenizer and corpus; an ordinary pre-training run
(`stemma fill` and `stemma resume` work on it); and the evaluation on held-out text. The last two are an experiment of
the lab (`finetune_comparison.py`). The counting models are runs of the recipe two-sided-ngram. A state file lists the
finished stages, so an interrupted quickstart resumes.
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

from stemma.atomic_files import DiskFullError, atomic_folder, atomic_write
from stemma.checksummed_files import read_verified_object, record_finished_file, verify_file, write_object
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.device import accepts_device, choose_device
from stemma.errors import Interrupted, UserError, pluralize
from stemma.json_files import explain_damage
from stemma.lab.quickstart import probe_task, python_docs, throughput
from stemma.notes import silenced
from stemma.progress import progress_stage
from stemma.recipe_loading import recipe, required_special_tokens
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.budget import Budget
from stemma.training.run_folder import read_run

if TYPE_CHECKING:
    from stemma.lab.run_experiment import Lab

STATE, RESULT, REPORT = "quickstart.json", "result.json", "report.html"
TRAIN, HELD_OUT, TOKENIZER, CORPUS, RUN, TASK = "train.txt", "held-out.txt", "tokenizer", "corpus", "run", "task"
BASELINES = "baselines"  # counting models of the same text
LAB = "lab"  # the experiment, its cells and its results
HELD_OUT_FRACTION = 0.1
RECIPE = "modernbert@tiny"
# Changes for a few minutes of training on a small text; `recipe_changes.py` has the reasons.
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
PROBE, CORRUPTED_WORDS = "replaced_words", 6
NUM_FILLS = 6


@dataclass(frozen=True)
class QuickstartConfig:
    """The options of a quickstart; an interrupted one resumes only with the same options."""

    minutes: float | None  # None: depends on the machine's throughput
    seed: int
    seeds: int
    labels: int
    tests: int


@accepts_device
def quickstart(out: str | Path = "quickstart", *, minutes: float | None = None, seed: int = 0, seeds: int = 3,
               labels: int = 400, tests: int = 1000, overwrite: bool = False, device: str | None = None,
               show: bool = False, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run the stages that are not finished yet and return the results; `say` is called at the start of each stage.

    Without `minutes` a slow machine pre-trains longer than the default.
    """
    folder, config = Path(out), QuickstartConfig(minutes, seed, seeds, labels, tests)
    Budget.from_options(None, None, minutes, 1)  # raises for an invalid budget before anything is written
    stages = StageState.begin(folder, config, overwrite)
    try:
        with stages.run("text") as due:
            if due:
                say("extracting the documentation of your Python")
                stages.record("text", _write_text(folder, seed))
        with stages.run("corpus") as due:
            if due:
                say("training a tokenizer and building the corpus")
                stages.record("corpus", _build_corpus(folder))
        with stages.run("pretrain") as due:
            if due:
                changed = f" with {pluralize(len(CHANGES), 'change')}" if CHANGES else ""
                usual = throughput.MINUTES if minutes is None else minutes
                say(f"pre-training {RECIPE}{changed} for {pluralize(usual, 'minute')}")
                stages.record("pretrain", _pretrain(folder, stages, show, say))
        with stages.run("worth") as due:
            if due:
                say("evaluating on held-out text")
                stages.record("worth", _evaluate(folder, stages, show, say))
    except UserError as error:
        if not stages.results:
            shutil.rmtree(folder)  # no stage is finished: leave nothing behind
        if isinstance(error, DiskFullError):  # drop advice about the inner run: the quickstart itself resumes
            raise DiskFullError(error.problem) from error
        raise
    except (Interrupted, KeyboardInterrupt) as error:
        reached = str(error).partition(";")[0] or "stopped"
        again = f"stemma quickstart --out {shlex.quote(str(out))}"
        raise Interrupted(f"{reached}; `{again}` goes on from there.") from error
    result = stages.result() | {"out": str(out), "report": str(folder / REPORT), "recipe": RECIPE,
                                "changes": list(CHANGES)}
    from stemma.lab.quickstart.html_report import write_quickstart_report
    from stemma.lab.quickstart.recipe_changes import explain_changes
    from stemma.lab.quickstart.usage import usage
    from stemma.lab.quickstart.verdict import verdicts

    result |= {"commands": commands(folder, result["minutes"], seed), "usage": usage(folder / RUN, folder / TASK),
               "diff": explain_changes(read_run(folder / RUN)[0]), "verdicts": verdicts(result)}
    write_quickstart_report(result, folder)
    atomic_write(folder / RESULT, json.dumps(result, indent=1))
    return result


class StageState:
    """The finished stages with their results and times."""

    def __init__(self, folder: Path, config: QuickstartConfig, results: dict[str, Any]):
        self.folder, self.config, self.results = folder, config, results

    @classmethod
    def begin(cls, folder: Path, config: QuickstartConfig, overwrite: bool) -> StageState:
        """A new folder, or that of an interrupted quickstart; a folder with other files is refused."""
        exists = (folder / STATE).is_file()
        if overwrite or not exists:
            with atomic_folder(folder, overwrite=overwrite and exists, checksums=False) as temporary:
                cls(temporary, config, {}).write()
            return cls(folder, config, {})
        if (folder / RESULT).is_file():
            raise UserError(f"{folder} holds a finished quickstart; look at {folder / REPORT}, choose another --out, "
                            "or add --overwrite.")
        advice = "add --overwrite to begin anew."
        stored = read_verified_object(folder / STATE, advice)
        with explain_damage(folder / STATE, advice):
            if stored["wishes"] != asdict(config):
                minutes = stored["wishes"]["minutes"]
                options = f"{'' if minutes is None else f'--minutes {minutes:g} '}--seed {stored['wishes']['seed']}"
                raise UserError(f"the quickstart in {folder} was begun with other settings ({options}); go on with "
                                "those, or add --overwrite.")
            results = dict(stored["found"])
            if "pretrain" in results:
                float(results["speed"]["minutes"])  # the report needs it
            return cls(folder, config, results)

    @contextmanager
    def run(self, name: str) -> Iterator[bool]:
        began, cpu_began, due = time.perf_counter(), time.process_time(), name not in self.results
        with progress_stage(f"quickstart, {name}", bar="none"):
            yield due
        if due:
            self.results[name] |= {"took": time.perf_counter() - began, "cpu": time.process_time() - cpu_began}
            self.write()

    def record(self, name: str, results: dict[str, Any]) -> None:
        self.results[name] = results

    def result(self) -> dict[str, Any]:
        stages = {name: self.results[name] for name in ("text", "corpus", "pretrain", "worth")}
        results = {name: stages[name] for name in ("text", "corpus")} | {"pretraining": stages["pretrain"]}
        return {**asdict(self.config), **results, **stages["worth"], "speed": self.results["speed"],
                "minutes": self.results["speed"]["minutes"], "took": sum(stage["took"] for stage in stages.values()),
                "stages": {name: {key: stage[key] for key in ("took", "cpu")} for name, stage in stages.items()}}

    def write(self) -> None:
        state = {"wishes": asdict(self.config), "found": self.results}
        write_object(self.folder / STATE, state)


def commands(folder: Path, minutes: float, seed: int) -> list[str]:
    """The single commands that repeat the quickstart's training."""
    text, tokenizer, corpus, run = (shlex.quote(str(folder / name)) for name in (TRAIN, TOKENIZER, CORPUS, RUN))
    changed, default = (loaded.settings.tokenizer for loaded in (recipe(RECIPE, CHANGES), recipe(RECIPE)))
    kind = f" --kind {changed.kind}" if changed.kind != default.kind else ""
    case = f" --{'' if changed.lowercase else 'no-'}lowercase" if changed.lowercase != default.lowercase else ""
    return [f"stemma tokenizer train {text} --for {RECIPE}{kind}{case} --vocab-size {changed.vocab_size} --out "
            f"{tokenizer}",
            f"stemma corpus build {text} --tokenizer {tokenizer} --sentences line --out {corpus}",
            " ".join(["stemma pretrain", RECIPE, "--corpus", corpus, "--out", run, f"--minutes {minutes:g}",
                      f"--seed {seed}", *map(shlex.quote, CHANGES)])]


def _write_text(folder: Path, seed: int) -> dict[str, Any]:
    pages = python_docs.collect_pages()
    train, held_out = python_docs.split_pages(pages, seed, HELD_OUT_FRACTION)
    python_docs.write_pages(train, folder / TRAIN)
    python_docs.write_pages(held_out, folder / HELD_OUT)
    for name in (TRAIN, HELD_OUT):
        record_finished_file(folder / name)
    return {"documents": len(train), "words": sum(page.words for page in train),
            "held_out_documents": len(held_out), "held_out_words": sum(page.words for page in held_out)}


def _build_corpus(folder: Path) -> dict[str, Any]:
    quickstart_recipe = recipe(RECIPE, CHANGES)
    settings = quickstart_recipe.settings.tokenizer
    tokenizer = train_tokenizer(_lines(folder / TRAIN), settings.kind, settings.vocab_size,
                                lowercase=settings.lowercase, roles=required_special_tokens(quickstart_recipe),
                                cjk_spacing=settings.cjk_spacing)
    with atomic_folder(folder / TOKENIZER, overwrite=True) as temporary:
        tokenizer.save(temporary)
    built = build_corpus([folder / TRAIN], tokenizer, folder / CORPUS, sentences="line", overwrite=True)
    return {"vocabulary": tokenizer.vocab_size, "tokens": built["tokens"], "sentences": built["sentences"],
            "unknown_rate": built["unknown_rate"]}


def _pretrain(folder: Path, stages: StageState, show: bool, say: Callable[[str], None]) -> dict[str, Any]:
    from stemma.lab.cell_runner import CellRunner

    def record(speed: dict[str, Any]) -> None:
        """Store the budget once, so that an interrupted run ends where it would have ended."""
        stages.record("speed", speed)
        stages.write()
        say(speed["said"])

    training = None if "speed" in stages.results else partial(
        throughput.train_and_time, requested_minutes=stages.config.minutes, record=record)
    lab, _ = _lab(folder, stages)
    return CellRunner(lab.experiment, lab.text_split, lab.costs, show, training).train(lab.cells[0])


def _evaluate(folder: Path, stages: StageState, show: bool, say: Callable[[str], None]) -> dict[str, Any]:
    from stemma.exchange.load import load
    from stemma.lab.quickstart import finetune_comparison, masked_accuracy
    from stemma.lab.run_experiment import work_on

    config = stages.config
    with silenced():
        lab, probes = _lab(folder, stages)
    say(f"fine-tuning from pre-trained and from random weights, {pluralize(config.seeds, 'seed')} each")
    with silenced():  # the lab's messages make no sense here
        work_on(lab, 1, show)
    model, corpus = load(folder / RUN, choose_device()), Corpus.open(folder / CORPUS)
    held_out = [line for line in _lines(folder / HELD_OUT) if line]
    with atomic_folder(folder / "held-out", overwrite=True) as temporary:
        held_out_corpus = temporary / "corpus"
        with silenced():
            build_corpus([folder / HELD_OUT], Tokenizer.load(folder / TOKENIZER), held_out_corpus, sentences="line")
        rows = masked_accuracy.mask_held_out(Corpus.open(held_out_corpus), model.recipe, config.seed)
    with silenced():
        baselines = masked_accuracy.count_baselines(folder / CORPUS, folder / BASELINES)
    masked = masked_accuracy.baseline_scores(baselines, rows) | {"model": masked_accuracy.model_scores(model, rows)}
    return {"places": int(rows.targets.sum()), "masked": masked,
            "curve_baselines": masked_accuracy.validation_baselines(baselines, model.recipe, corpus, config.seed),
            "probe": {"kind": PROBE, "strength": CORRUPTED_WORDS,
                      "settings": asdict(finetune_comparison.ProbeTraining()),
                      **finetune_comparison.classifier_accuracies(lab, probes, say),
                      "example": _example_pair(probes[0])},
            "filled": masked_accuracy.sample_fills(model, held_out, NUM_FILLS, config.seed)}


def _lab(folder: Path, stages: StageState) -> tuple[Lab, list[probe_task.Probe]]:
    """The experiment in its folder and the examples of each round. Its budget is the requested or default one until the
    throughput is measured."""
    from stemma.lab.quickstart.finetune_comparison import experiment
    from stemma.lab.run_experiment import open_lab

    config, counts = stages.config, probe_task.count_words(_lines(folder / TRAIN))
    held_out = [line for line in _lines(folder / HELD_OUT) if line]
    tasks = [folder / (f"{TASK}-{index + 1}" if index else TASK) for index in range(config.seeds)]
    probes = [probe_task.make_probe(PROBE, held_out, counts, config.seed + index, config.labels, config.tests,
                                    CORRUPTED_WORDS)
              for index in range(config.seeds)]
    for probe, task_folder in zip(probes, tasks, strict=True):
        probe.write(task_folder)
    minutes = stages.results["speed"]["minutes"] if "speed" in stages.results else config.minutes or throughput.MINUTES
    probe_experiment = experiment(recipe(RECIPE, CHANGES), folder / RUN, folder / CORPUS, tasks, minutes, config.seed)
    return open_lab(probe_experiment, folder / LAB, False), probes


def _example_pair(examples: probe_task.Probe) -> dict[str, str]:
    """An original and a corrupted sentence for the report."""
    return {name: next(text for text, label in examples.train if label == expected)
            for name, expected in (("intact", probe_task.ORIGINAL), ("damaged", probe_task.CORRUPTED))}


def _lines(path: Path) -> Sequence[str]:
    verify_file(path, "add --overwrite to begin anew.")
    return path.read_text(encoding="utf-8").splitlines()
