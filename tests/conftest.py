"""Fixtures and hooks of all tests: a small text, the tokenizer and corpus built from it, and the order of the tests."""

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
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # ignored because pytest runs in the background; tests need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup make test
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.fsync = lambda handle: None  # only a power cut needs it, and it would double the time of the tests

logging.getLogger("stemma").setLevel(logging.INFO)  # for caplog; other tests check what is silent by default

SEED = int(os.environ.get("STEMMA_TEST_SEED", "0"))  # of weights and training, in tests that assert learning

LONG = (  # the longest first
    "faults/test_kill.py", "test_docs.py", "lab/test_quickstart.py", "lab/test_lab_work.py", "training/test_loop.py",
    "objectives/test_replaced_token.py", "faults/test_kill_pipeline.py", "faults/test_bad_input.py",
    "faults/test_kill_finetune.py", "faults/test_kill_strategies.py", "tasks/test_seq2seq.py",
    "faults/test_kill_tasks.py", "faults/test_kill_multitask.py", "lab/test_browser.py")
NOT_FAST = (  # make test-fast omits these four, and the longest tests that train or draw many samples
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


@pytest.hookimpl(trylast=True)  # after other plug-ins have deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests with long files first, so that all workers are busy to the end. `--dist worksteal` gives each
    worker one chunk of the list and steals from the end of a chunk, so every chunk starts with long files."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    chunks: list[list[pytest.Item]] = [[] for _ in range(workers)]
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if not (config.getoption("--fast") and name.startswith(NOT_FAST)):
            files.setdefault(name.partition("::")[0], []).append(item)
    for index, name in enumerate(LONG):
        chunks[index % workers] += files.pop(name, [])
    short = [item for items_of_file in files.values() for item in items_of_file]
    count, assigned = len(short) + sum(map(len, chunks)), 0
    for index, chunk in enumerate(chunks):
        missing = max(0, count * (index + 1) // workers - assigned - len(chunk))
        chunk += short[:missing]
        del short[:missing]
        assigned += len(chunk)
    items[:] = [item for chunk in chunks for item in chunk]


@contextmanager
def captured_log_messages() -> Iterator[list[str]]:
    """The messages that stemma logs inside the block, for fixtures that outlive a test; a test has caplog."""
    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    logger, recorder = logging.getLogger("stemma"), Recorder()
    logger.addHandler(recorder)
    try:
        yield messages
    finally:
        logger.removeHandler(recorder)


SUBJECTS = ["the old clerk", "a young reader", "our neighbour", "the printer", "every scribe", "the librarian"]
VERBS = ["copies", "reads", "repairs", "forgets", "translates", "numbers", "collects", "compares"]
OBJECTS = ["a letter", "the family tree", "seven pages", "an older manuscript", "the margin notes", "one missing leaf"]
PLACES = ["in the cellar", "by the window", "before noon", "without a lamp", "for the archive", "at the river"]


def small_text(documents: int = 40, sentences: int = 12, seed: int = 0) -> str:
    """Text that a model learns in a few steps: one sentence per line, a blank line between documents."""
    rng = random.Random(seed)
    texts = []
    for _ in range(documents):
        topic = rng.sample(OBJECTS, 2)
        lines = [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(topic)} {rng.choice(PLACES)}.".capitalize()
                 for _ in range(rng.randint(max(1, sentences // 2), sentences))]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def count_skipped(config: pytest.Config) -> dict[tuple[str, str], int]:
    """How many tests were skipped, by file and reason. A file that cannot be imported counts as one."""
    names_by_reason: dict[tuple[str, str], set[str]] = {}
    for report in config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        key = (report.nodeid.partition("::")[0], reason.removeprefix("Skipped: "))
        names_by_reason.setdefault(key, set()).add(report.nodeid)
    return {key: len(names) for key, names in sorted(names_by_reason.items())}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List every skipped test with its reason in the last lines."""
    for (file, reason), count in count_skipped(config).items():
        terminalreporter.write_line(f"SKIPPED {count} in {file}: {reason}", yellow=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test was skipped in one of the files in STEMMA_MUST_RUN (separated by spaces; .ci/run sets it)."""
    must_run = os.environ.get("STEMMA_MUST_RUN", "").split()
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and any(file in must_run for file, _ in count_skipped(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed all generators, so that no test depends on the tests before it. STEMMA_TEST_SEED sets another seed."""
    random.seed(SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(SEED)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(SEED)  # torch.manual_seed also stores a traceback for lazy CUDA calls


def pytest_runtest_teardown() -> None:
    if commands := sys.modules.get("commands"):
        commands.stop_running_commands()


@pytest.fixture(scope="session", autouse=True)
def isolated_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["STEMMA_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def unpad_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove padding in narrow networks too, where computing it is faster."""
    from stemma.network import unpad

    monkeypatch.setattr(unpad, "MIN_SAVING", 1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`shared(name, make)` is the path that `make(path)` wrote; it runs once for the tests of all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder = root / "shared" / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait until the first is done
            if not (folder / "done").exists():
                make(folder / "content")
                (folder / "done").touch()
        return folder / "content"

    return get


@pytest.fixture(scope="session")
def python_pages(shared: Callable[[str, Callable[[Path], object]], Path]) -> list:
    """The documentation inside the Python installation, collected once because it takes seconds."""
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
