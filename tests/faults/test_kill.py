"""A pre-training run that is killed with SIGKILL at any moment resumes to the bytes of an uninterrupted run."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import process, stop_running_commands
from commands import start_unreported as start
from commands import stemma_unreported as stemma
from conftest import small_text

from stemma import recipe_loading
from stemma.corpus.annotate import annotate
from stemma.corpus.build import build_corpus
from stemma.text.parallel import PairSource

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.checkpoint_every=3", "training.warmup_steps=5",
         "training.log_every=1", "training.validate_every=10"]
DYNAMIC = "objective.masked_lm.dynamic=true"
STEPS, LONGER = ["--steps", "20"], ["--steps", "30"]
DECODER = ["network.decoder.layers=1"]
VARIANTS = {
    "static masks, 20 steps": [*STEPS, "objective.masked_lm.duplicates=2"],
    "dynamic masks, 5000 tokens": ["--tokens", "5000", DYNAMIC],
    "two lengths": [*STEPS, "corpus.first_phase.fraction=0.5", "corpus.first_phase.sequence_length=16"],
    "two lengths by tokens": ["--tokens", "4200", DYNAMIC, "corpus.first_phase.fraction=0.3",
                              "corpus.first_phase.sequence_length=16", "corpus.first_phase.batch_size=12",
                              "corpus.first_phase.warmup_steps=3"],
    "gradient slices": [*STEPS, DYNAMIC, "training.micro_batch_size=3"],
    # large enough for torch to use both threads
    "two threads": ["--steps", "18", "training.threads=2", "network.width=128", "network.feedforward=512",
                    "corpus.sequence_length=64", "training.batch_size=16"],
    "bf16": [*STEPS, "training.precision=bf16"],
    "tasks in turns": [*STEPS, "objective.masked_lm.packing=full_sentences", "objective.next_sentence.start_step=5"],
    "lamb, cosine": [*STEPS, "training.optimizer={kind='lamb'}", "training.schedule={kind='cosine'}"],
    "adafactor": [*STEPS, "training.optimizer={kind='adafactor'}", "training.schedule={kind='inverse_sqrt'}"],
    "muon, decay by share": ["--tokens", "4200", "training.optimizer={kind='muon', adamw_learning_rate=1e-3}",
                             "training.learning_rate=0.02", "training.threads=1",
                             "training.schedule={kind='warmup_stable_decay', shape='one_minus_sqrt', decay=0.5}"],
    "electra": [*STEPS, "training.micro_batch_size=3"],  # the generator's samples are drawn again
    "gpt2": STEPS,
    "gpt3, read backwards": [*STEPS, "objective.causal_lm.direction=backward", "network.attention.windows=[0, 8]"],
    # the text has about 13 segments, so the memory is carried over a kill and over the end of an epoch
    "transformer-xl": [*STEPS, "network.attention.head_width=16", "network.memory.length=48"],
    "transformer-xl, slices": [*STEPS, "network.attention.head_width=16", "training.micro_batch_size=3",
                               "network.memory.start=empty", "network.memory.length=20"],
    "xlnet": [*STEPS, "network.attention.head_width=16", "network.memory.length=24"],
    "universal-transformer": [*STEPS, "network.layers=4"],
    "mass": [*STEPS, *DECODER],
    "bart": [*STEPS, *DECODER],
    "t5": [*STEPS, *DECODER],
    "prefix-lm": STEPS,
    "unilm": STEPS,
    "ernie-2": STEPS,  # only the tasks that plain text supports
    "ernie-2, all data": ["--tokens", "9000"],
    "ernie, all data": STEPS,
    "stages by tokens": ["--tokens", "5000", DYNAMIC, "objective.masked_lm.end_fraction=0.6",
                         "objective.words.kind=masked_lm", "objective.words.unit=word",
                         "objective.words.rate=0.3", "objective.words.dynamic=true",
                         "objective.words.start_fraction=0.4", "objective.next_sentence.end_fraction=0.5"],
    "transformer": [*STEPS, *DECODER, "training.micro_batch_size=3"],
}

# One variant per mechanism. The others combine them and run in make test-slow.
QUICK = ("static masks, 20 steps", "two lengths by tokens", "two threads", "bf16", "muon, decay by share", "electra",
         "transformer-xl", "universal-transformer", "ernie-2, all data", "stages by tokens", "transformer")


def build_pair_corpus(corpus: Path, folder: Path) -> Path:
    """A corpus of pairs of consecutive lines of the small text, with the same tokenizer."""
    lines = [line for line in small_text().splitlines() if line.strip()]
    table = folder / "pairs.tsv"
    table.write_text("\n".join(map("\t".join, zip(["source", *lines[:-1]], ["target", *lines[1:]], strict=True))))
    build_corpus([], corpus / "tokenizer", folder / "pairs", pairs=[PairSource(str(table))], workers=1)
    return folder / "pairs"


def build_corpus_for_all_objectives(corpus: Path, folder: Path) -> Path:
    """A corpus for all objectives: connectives, dialogues, relevance labels, phrases and entities."""
    text = small_text().replace("The printer", "However, the printer").replace("Every scribe", "So every scribe")
    lines = [line for line in text.splitlines() if line.strip()]
    (folder / "text.txt").write_text(text)
    dialogues = [[["a", lines[n]], ["b", lines[n + 1]], ["a", lines[n + 2]]] for n in range(0, 90, 3)]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, dialogues)))
    (folder / "judged.tsv").write_text("\n".join(["query\ttitle\tlabel", *(f"{lines[n]}\t{lines[n + 1]}\t{n % 3}"
                                                                          for n in range(60))]))
    (folder / "names.txt").write_text("the librarian\nour neighbour\n")
    build_corpus([folder / "text.txt"], corpus / "tokenizer", folder / "everything", workers=1,
                 dialogue=[folder / "chat.jsonl"], relevance=[folder / "judged.tsv"])
    annotate(folder / "everything", phrases="mine", entities=folder / "names.txt")
    return folder / "everything"


def model_bytes(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def saved_steps(run: Path) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in (run / "checkpoints").glob("step-*")]


def check_log(run: Path, steps: int) -> None:
    """Assert that the log has no torn line, and every step and every validation exactly once."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, steps + 1))
    validated_steps = [entry["step"] for entry in entries if "validation_loss" in entry]
    assert validated_steps == sorted({*range(10, steps + 1, 10), steps})
    assert [entry["step"] for entry in entries] == sorted(entry["step"] for entry in entries)


def kill_and_resume(first: list[object], run: Path, rng: random.Random) -> int:
    """Kill before the first checkpoint, during a save, and twice at random. Returns how many kills succeeded."""
    def saving() -> bool:
        return any((run / "checkpoints").glob(".step-*.tmp"))

    def has_checkpoint(step: int) -> bool:
        return max(saved_steps(run), default=0) >= step

    def later() -> bool:
        if has_checkpoint(9):
            time.sleep(rng.uniform(0, 0.03))
        return has_checkpoint(9)

    conditions = [lambda: (run / "run.json").is_file(), saving, lambda: has_checkpoint(3) and saving(), later]
    hits = 0
    for index, condition in enumerate(conditions):
        ended = start(*(first if index == 0 else ["resume", run])).kill_when(condition)
        assert ended.code in (-signal.SIGKILL, 0), ended.err
        hits += ended.code == -signal.SIGKILL
    return hits


@pytest.mark.parametrize("variant", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
                                     for name in VARIANTS])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, corpus_folder, variant):
    family = variant.split(",")[0]
    recipe = f"{family if family in recipe_loading.recipe_names() else 'bert'}@tiny"
    corpus = build_pair_corpus(corpus_folder, tmp_path) if family == "transformer" else corpus_folder
    corpus = build_corpus_for_all_objectives(corpus_folder, tmp_path) if variant.endswith("all data") else corpus
    command = ["pretrain", recipe, "--corpus", corpus, *SMALL, *VARIANTS[variant], "--seed", "3", "--json"]
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    reference = stemma(*command, "--out", uninterrupted)
    assert reference.code == 0, reference.err

    if variant.endswith("all data"):
        assert "switched off" not in reference.err

    assert kill_and_resume([*command, "--out", killed], killed, random.Random(variant)) >= 3
    resumed = stemma("resume", killed, "--json")
    assert resumed.code == 0, resumed.err

    assert model_bytes(killed) == model_bytes(uninterrupted)
    for name in ("loss", "validation_loss", "unigram_loss", "steps", "tokens"):
        assert resumed.json[name] == reference.json[name]
    assert reference.json["steps"] > 15
    check_log(uninterrupted, reference.json["steps"])
    check_log(killed, reference.json["steps"])
    assert not [path for path in killed.rglob("*") if path.name.endswith((".tmp", ".old"))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_processes_killed_at_random_times_resume_to_the_same_bytes(tmp_path, corpus_folder, seed):
    """Processes as users start them, killed at uniformly random times from their start, until one finishes."""
    command = [sys.executable, "-m", "stemma", "pretrain", "bert@tiny", "--corpus", str(corpus_folder), *SMALL,
               "--steps", "400", "training.checkpoint_every=7"]
    rng = random.Random(seed)
    run, uninterrupted = tmp_path / "run", tmp_path / "uninterrupted"
    began = time.monotonic()
    subprocess.run([*command, "--out", str(uninterrupted)], check=True, capture_output=True)
    duration = time.monotonic() - began
    kills = 0
    while not (run / "result.json").is_file():
        again = [*command[:3], "resume", str(run)] if run.is_dir() else [*command, "--out", str(run)]
        with process(*again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            try:
                child.wait(rng.uniform(0, 0.4 * duration) if kills < 8 else None)
            except subprocess.TimeoutExpired:
                child.kill()
                kills += 1
    assert kills >= 3 and model_bytes(run) == model_bytes(uninterrupted)


@pytest.fixture
def uninterrupted_run(shared, corpus_folder):
    """An uninterrupted BERT run of thirty steps, trained once for all tests that compare with it."""
    def make(run: Path) -> None:
        done = stemma("pretrain", "bert@tiny", "--corpus", corpus_folder, *SMALL, *LONGER, "--out", run)
        assert done.code == 0, done.err

    return shared("thirty-steps", make)


def test_a_run_killed_before_torch_is_imported_can_be_resumed(tmp_path, corpus_folder, uninterrupted_run):
    """A separate process, because the run folder must exist before the slow import."""
    command = [sys.executable, "-m", "stemma", "pretrain", "bert@tiny", "--corpus", str(corpus_folder), *SMALL, *LONGER]
    run = tmp_path / "run"
    began = time.monotonic()
    with process(*command, "--out", run, stderr=subprocess.PIPE) as child:
        while not (run / "run.json").is_file():
            assert child.poll() is None and time.monotonic() < began + 60
            time.sleep(0.001)
        libraries = Path(f"/proc/{child.pid}/maps")
        torch_is_loaded = libraries.exists() and "libtorch" in libraries.read_text()
    assert not torch_is_loaded
    assert sorted(path.name for path in run.iterdir()) == ["checksums.json", "recipe.toml", "run.json"]
    assert stemma("resume", run).code == 0
    assert model_bytes(run) == model_bytes(uninterrupted_run)


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_run_killed_while_text_is_tokenised_resumes_to_the_same_bytes(tmp_path, shared, source):
    text, cache, run = tmp_path / "text.txt", {"STEMMA_CACHE": str(tmp_path / "cache")}, tmp_path / "run"
    text.write_text(small_text(1500, 12, seed=1))
    stdin = {"standard_input": str(text)} if source == "stdin" else {}
    command = ["pretrain", "bert@tiny", "--corpus", "-" if stdin else text, *SMALL, "--steps", "6"]

    def make(uninterrupted: Path) -> None:
        done = stemma(*command, "--out", uninterrupted, **stdin, STEMMA_CACHE=str(tmp_path / "other cache"))
        assert done.code == 0, done.err

    def tokenising() -> bool:
        return any((tmp_path / "cache").glob("*/.corpus.*.tmp/shard-00000/*"))

    def training_tokenizer() -> bool:
        return (run / "run.json").is_file() and any((tmp_path / "cache").glob("*"))

    assert start(*command, "--out", run, **stdin, **cache).kill_when(training_tokenizer).code == -signal.SIGKILL
    assert start("resume", run, **cache).kill_when(tokenising).code == -signal.SIGKILL
    if not stdin:
        text.rename(tmp_path / "moved.txt")
        lost = stemma("resume", run, **cache)
        assert lost.code == 2 and "text.txt" in lost.err and run.is_dir()
        (tmp_path / "moved.txt").rename(text)
    resumed = stemma("resume", run, "--json", **cache)
    assert resumed.code == 0, resumed.err
    assert not list((tmp_path / "cache").rglob(".*")), "temporary files are left in the cache"

    uninterrupted = shared("six-steps-of-text", make)
    assert model_bytes(run) == model_bytes(uninterrupted)
    assert (run / "recipe.toml").read_text() == (uninterrupted / "recipe.toml").read_text()


def test_resuming_does_not_need_the_text_once_the_corpus_is_built(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(small_text(seed=2))
    cache = {"STEMMA_CACHE": str(tmp_path / "cache")}
    run, uninterrupted = tmp_path / "run", tmp_path / "uninterrupted"
    command = ["pretrain", "bert@tiny", "--corpus", text, *SMALL, *STEPS]
    ended = start(*command, "--out", run, **cache).kill_when(lambda: len(saved_steps(run)))
    assert ended.code == -signal.SIGKILL
    original = text.read_text()
    text.write_text("other text")
    assert stemma("resume", run, **cache).code == 0
    text.write_text(original)
    assert stemma(*command, "--out", uninterrupted, **cache).code == 0
    assert model_bytes(run) == model_bytes(uninterrupted)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_exits_with_130(tmp_path, corpus_folder, uninterrupted_run, signal_number):
    command = ["pretrain", "bert@tiny", "--corpus", corpus_folder, *SMALL, *LONGER, "training.checkpoint_every=1000"]
    run = tmp_path / "run"
    stopped = start(*command, "--out", run, "--json").kill_when(lambda: _num_log_lines(run) >= 5, signal_number)
    assert stopped.code == 130
    [step] = saved_steps(run)
    assert f"stopped at step {step}" in stopped.err and f"`stemma resume {run}`" in stopped.err
    assert stopped.err.count("\n") == 1 and set(stopped.json) == {"interrupted"}
    assert 5 <= step < 30 and not (run / "model").exists()

    assert stemma("resume", run).code == 0
    assert model_bytes(run) == model_bytes(uninterrupted_run)
    check_log(run, 30)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_text_is_tokenised_leaves_a_resumable_run(tmp_path, signal_number):
    text = tmp_path / "text.txt"
    text.write_text(small_text(1500))
    cache, run = {"STEMMA_CACHE": str(tmp_path / "cache")}, tmp_path / "run"
    first = start("pretrain", "bert@tiny", "--corpus", text, "--out", run, *SMALL, "--steps", 3, **cache)
    stopped = first.kill_when(lambda: any((tmp_path / "cache").glob("*/.corpus.*.tmp/*")), signal_number)
    assert stopped.code == 130 and f"`stemma resume {run}`" in stopped.err
    assert not list((tmp_path / "cache").rglob(".*"))
    assert stemma("resume", run, **cache).code == 0


def test_a_second_process_is_refused_while_the_first_trains(tmp_path, corpus_folder):
    """SIGSTOP pauses the first process, so that it cannot finish before the second is refused."""
    run, deadline = tmp_path / "run", time.monotonic() + 120
    with process(sys.executable, "-m", "stemma", "pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", run,
                 *SMALL, "--steps", "200", stderr=subprocess.PIPE) as first:
        while not saved_steps(run):
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        second = stemma("resume", run)
        first.send_signal(signal.SIGCONT)
        assert second.code == 2 and second.err.startswith(f"error: another process is training {run}")
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130


def test_a_test_that_fails_leaves_no_process_behind(tmp_path, corpus_folder):
    """Neither a command that it waits to kill nor a process that it starts."""
    def fails() -> bool:
        raise AssertionError

    long = ["pretrain", "bert@tiny", "--corpus", corpus_folder, *SMALL, "--steps", "100000", "--out"]
    running = start(*long, tmp_path / "run")
    with pytest.raises(AssertionError):
        running.kill_when(fails)
    stop_running_commands()  # as after every test
    with pytest.raises(AssertionError), process("sleep", "600") as sleeping:
        fails()
    assert not psutil.pid_exists(running.process) and not psutil.pid_exists(sleeping.pid)
    assert stemma("tree").code == 0, "the server process must still work for the next test"


def test_resuming_a_finished_run_reports_its_result_and_changes_no_file(tmp_path, corpus_folder):
    run = tmp_path / "run"
    done = stemma("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", run, *SMALL, "--steps", 3, "--json")
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*.*") if path.name != "report.html"}
    again = stemma("resume", run, "--json")
    assert (again.code, again.out) == (0, done.out) and f"{run} is finished" in again.err
    assert {path: path.stat().st_mtime_ns for path in files} == files


def _num_log_lines(run: Path) -> int:
    return (run / "log.jsonl").read_bytes().count(b"\n") if (run / "log.jsonl").is_file() else 0
