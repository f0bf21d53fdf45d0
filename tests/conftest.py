"""What many tests share: a small text of our own, and the tokenizer and corpus made from it."""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side on few cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))  # for tests/literal
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; tests and what they start obey it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup make test
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.fsync = lambda handle: None  # only a power cut needs it; with it, tests wait for the disk as long as they compute

logging.getLogger("stemma").setLevel(logging.INFO)  # for caplog; whoever is silent by default is tested for it

SEED = int(os.environ.get("STEMMA_TEST_SEED", "0"))  # of weights and training wherever a test asserts learning

LONG = (  # the longest first
    "faults/test_kill.py", "test_docs.py", "lab/test_quickstart.py", "lab/test_lab_work.py", "training/test_loop.py",
    "objectives/test_replaced_token.py", "faults/test_kill_pipeline.py", "faults/test_bad_input.py",
    "faults/test_kill_finetune.py", "faults/test_kill_strategies.py", "tasks/test_seq2seq.py",
    "faults/test_kill_tasks.py", "faults/test_kill_multitask.py", "lab/test_browser.py")
NOT_FAST = (  # left out by make test-fast: these four, and the longest of those that train or draw many samples
    "faults/", "lab/test_browser.py", "test_docs.py", "lab/test_quickstart.py",
    "lab/test_lab_work.py", "lab/test_flops.py", "lab/test_harvest.py", "test_other_device.py", "test_plugins.py",
    "cli/test_predict_verbs.py", "cli/test_multitask_verb.py", "cli/test_finetune_verb.py", "cli/test_pipeline_verb.py",
    "cli/test_parallel_verbs.py", "generation/test_threads.py", "parity/test_training_mode.py",
    "tasks/test_own_kind.py", "tasks/test_seq2seq.py", "tasks/test_seq2seq_structures.py::test_they_learn",
    "tasks/test_learning.py", "tasks/test_structures.py", "tasks/test_sweep.py", "tasks/test_multitask.py",
    "tasks/test_pipeline_whole.py", "tasks/test_strategies.py", "training/test_hardware.py",
    "training/test_step.py::test_two_processes", "training/test_early_stopping.py",
    "training/test_loop.py::test_the_loss_falls", "objectives/test_replaced_token.py::test_it_learns")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="without faults, browser, documentation, quickstart and long "
                     "training")


@pytest.hookimpl(trylast=True)  # when others have taken out what is not asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first, so that workers are busy to the end. `--dist worksteal` gives each worker one stretch of the
    list, and takes from the end of another's: so every stretch begins with long files, dealt out in turn."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    stretches: list[list[pytest.Item]] = [[] for _ in range(workers)]
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if not (config.getoption("--fast") and name.startswith(NOT_FAST)):
            files.setdefault(name.partition("::")[0], []).append(item)
    for number, name in enumerate(LONG):
        stretches[number % workers] += files.pop(name, [])
    rest = [item for some in files.values() for item in some]
    count, begun = len(rest) + sum(map(len, stretches)), 0
    for number, stretch in enumerate(stretches):
        missing = max(0, count * (number + 1) // workers - begun - len(stretch))
        stretch += rest[:missing]
        del rest[:missing]
        begun += len(stretch)
    items[:] = [item for stretch in stretches for item in stretch]


@contextmanager
def heard() -> Iterator[list[str]]:
    """What stemma's loggers say inside, for fixtures that outlive a test; a test has caplog."""
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    said: list[str] = []
    logger, kept = logging.getLogger("stemma"), Kept()
    logger.addHandler(kept)
    try:
        yield said
    finally:
        logger.removeHandler(kept)


SUBJECTS = ["the old clerk", "a young reader", "our neighbour", "the printer", "every scribe", "the librarian"]
VERBS = ["copies", "reads", "repairs", "forgets", "translates", "numbers", "collects", "compares"]
OBJECTS = ["a letter", "the family tree", "seven pages", "an older manuscript", "the margin notes", "one missing leaf"]
PLACES = ["in the cellar", "by the window", "before noon", "without a lamp", "for the archive", "at the river"]


def small_text(documents: int = 40, sentences: int = 12, seed: int = 0) -> str:
    """Regular enough to be learnt in a few steps: one sentence a line, a blank line between documents."""
    rng = random.Random(seed)
    made = []
    for _ in range(documents):
        topic = rng.sample(OBJECTS, 2)
        lines = [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(topic)} {rng.choice(PLACES)}.".capitalize()
                 for _ in range(rng.randint(max(1, sentences // 2), sentences))]
        made.append("\n".join(lines))
    return "\n\n".join(made) + "\n"


def skipped(config: pytest.Config) -> dict[tuple[str, str], int]:
    """How many tests were skipped, by file and reason. A file that cannot be imported counts as one."""
    found: dict[tuple[str, str], set[str]] = {}
    for report in config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.setdefault((report.nodeid.partition("::")[0], reason.removeprefix("Skipped: ")), set()).add(report.nodeid)
    return {key: len(names) for key, names in sorted(found.items())}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """No test is skipped in silence: the last lines say which, and what it would take."""
    for (file, reason), count in skipped(config).items():
        terminalreporter.write_line(f"SKIPPED {count} in {file}: {reason}", yellow=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """STEMMA_MUST_RUN names files (with blanks between) of which nothing may be skipped, as in .ci/run."""
    needed = os.environ.get("STEMMA_MUST_RUN", "").split()
    if not hasattr(session.config, "workerinput") and any(file in needed for file, _ in skipped(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test draws the same numbers whatever ran before it; STEMMA_TEST_SEED=1 tries it with others."""
    random.seed(SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(SEED)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(SEED)  # torch.manual_seed also stores a traceback, for a GPU of later


def pytest_runtest_teardown() -> None:
    if started := sys.modules.get("commands"):
        started.stop_what_is_left()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["STEMMA_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`shared(name, make)`: what `make` writes at the path it is given, made once for the tests of all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def get(name: str, make: Callable[[Path], object]) -> Path:
        place = root / "shared" / name
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits for the first
            if not (place / "done").exists():
                make(place / "made")
                (place / "done").touch()
        return place / "made"

    return get


@pytest.fixture(scope="session")
def python_pages(shared: Callable[[str, Callable[[Path], object]], Path]) -> list:
    """The documentation inside this Python, read once: it takes seconds."""
    from stemma.lab.quickstart.python_docs import collect_pages

    return pickle.loads(shared("python-pages",
                               lambda file: file.write_bytes(pickle.dumps(collect_pages()))).read_bytes())


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text(small_text())
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    from stemma.text.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    train_tokenizer(iter([text_file.read_text()]), "wordpiece", 320, lowercase=True).save(folder)
    return folder


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory, text_file: Path, tokenizer_folder: Path) -> Path:
    from stemma.corpus.build import build_corpus

    folder = tmp_path_factory.mktemp("corpus") / "small"
    build_corpus([text_file], tokenizer_folder, folder, workers=1)
    return folder
