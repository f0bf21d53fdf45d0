"""A command creates its folder completely before slow work or leaves none, and never replaces a folder in use."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import start, stemma
from toy_pipeline import four_stages, write_data, write_plan
from toy_tasks import save_model, write_sets

from stemma.atomic_files import DiskFullError, atomic_write, lock_folder
from stemma.cli import main
from stemma.lab.cells import experiment_cells
from stemma.lab.experiment import ComputeBudget, Experiment, Variant
from stemma.lab.text_split import TextSplit
from stemma.recipe_loading import recipe
from stemma.training.run_folder import TextReadingOptions

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=2", "tokenizer.vocab_size=300"]
COMPARE = ["compare", "bert@tiny", "gpt2@tiny", *SMALL, "--corpus", "text.txt", "--tokens", "2000", "--seeds", "1",
           "--out", "out"]
ABLATE = ["ablate", "roberta@tiny", *SMALL, "--corpus", "text.txt", "--tokens", "2000", "--seeds", "1", "--out", "out"]
CLAIM = ["claims", "run", "masks", "--corpus", "text.txt", "--tokens", "100000", "--seeds", "1", "--out", "out"]
PRETRAIN = ["pretrain", "bert@tiny", *SMALL, "--steps", "4", "training.checkpoint_every=2", "--out", "out", "--corpus"]
CLASSIFY = ["--model", "model", "--train", "classify-train.jsonl", "--dev", "classify-dev.jsonl", "--out", "out"]
TASKS = '[tasks.first]\nkind = "classify"\ntrain = "classify-train.jsonl"\ndev = "classify-dev.jsonl"\n'
# A command, and a slow function that it calls early.
SLOW: list[tuple[list[str], str]] = [
    (COMPARE, "stemma.lab.run_experiment.split_text"), (COMPARE, "stemma.lab.variant_costs.build_or_load_corpus"),
    (COMPARE, "stemma.lab.variant_costs.step_cost"), (ABLATE, "stemma.lab.run_experiment.split_text"),
    (CLAIM, "stemma.lab.run_experiment.split_text"), (CLAIM[:3] + CLAIM[5:], "stemma.lab.claims.builtin_data"),
    ([*PRETRAIN, "text.txt"], "stemma.training.pretrain.build_or_load_corpus"),
    ([*PRETRAIN, "corpus"], "stemma.training.pretrain.open_run"),
    ([*PRETRAIN, "corpus"], "stemma.training.pretrain.Corpus.open"),
    (["finetune", "classify", *CLASSIFY], "stemma.tasks.runs.finetune.open_model"),
    (["finetune", "classify", *CLASSIFY], "stemma.tasks.runs.finetune_run.load"),
    (["finetune", "classify", *CLASSIFY, "--restarts", "2"], "stemma.tasks.runs.sweep.run_one"),
    (["finetune", "seq2seq", "--model", "writer", "--train", "pairs.tsv", "--dev", "pairs.tsv", "--out", "out"],
     "stemma.tasks.runs.seq2seq.build_corpus"),
    (["multitask", "tasks.toml", "--model", "model", "--out", "out"], "stemma.tasks.runs.multitask.open_model"),
    (["multitask", "tasks.toml", "--model", "model", "--out", "out"], "stemma.tasks.runs.finetune_run.load"),
    (["pipeline", "plan.toml", "--out", "out"], "stemma.tasks.pipeline.pipeline._check_contamination"),
    (["pipeline", "plan.toml", "--out", "out"], "stemma.tasks.pipeline.stage_runner.pretrain"),
    (["quickstart", "--out", "out", "--minutes", "0.1"], "stemma.lab.quickstart.python_docs.collect_pages"),
    (["corpus", "build", "text.txt", "--tokenizer", "tok", "--out", "out"], "stemma.corpus.build.read_passages"),
    (["tokenizer", "train", "text.txt", "--for", "bert", "--out", "out"],
     "stemma.text.train_tokenizer.train_tokenizer"),
]


@pytest.fixture(scope="session")
def input_files(tmp_path_factory, text_file, corpus_folder, tokenizer_folder) -> Path:
    folder = tmp_path_factory.mktemp("input")
    shutil.copy(text_file, folder / "text.txt")
    shutil.copytree(corpus_folder, folder / "corpus")
    shutil.copytree(tokenizer_folder, folder / "tok")
    save_model(folder / "model")
    save_model(folder / "writer", "bart@tiny", "network.decoder.layers=1")
    write_sets(folder, "classify", 32, 16)
    (folder / "pairs.tsv").write_text("source\ttarget\nthe old clerk\ta letter\nthe printer\tseven pages\n")
    (folder / "tasks.toml").write_text(TASKS)
    write_data(folder)
    write_plan(folder, four_stages())
    return folder


@pytest.fixture
def workspace(tmp_path, monkeypatch, input_files) -> Path:
    for path in input_files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def leftovers() -> list[str]:
    return [path.name for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("words", "slow"), SLOW, ids=[f"{words[0]} {words[1]}, {slow.split('.')[-1]}"
                                                       for words, slow in SLOW])
def test_an_early_interruption_leaves_a_resumable_folder_or_none(workspace, monkeypatch, capsys, words, slow):
    monkeypatch.setattr(slow, interrupt)
    assert main(words) == 130
    stderr = capsys.readouterr().err
    assert not leftovers()
    if not Path("out").exists():
        assert main(words) == 130, "not refused: it reaches the same slow function again"
        return
    if words[0] == "quickstart":
        assert "`stemma quickstart --out out` goes on" in stderr and main(words) == 130
        return
    assert "`stemma resume out` goes on" in stderr
    assert main(["resume", "out"]) == 130, capsys.readouterr().err
    assert "`stemma resume out` goes on" in capsys.readouterr().err
    if "--tokens" in words or words[0] == "pipeline":  # the same command also resumes a lab or a pipeline
        assert main(words) == 130, capsys.readouterr().err


def test_an_interrupted_comparison_resumes_and_can_be_repeated(workspace):
    stopped = start(*COMPARE).kill_when(Path("out/lab.json").is_file, signal.SIGINT)
    assert stopped.code == 130 and "`stemma resume out` goes on" in stopped.err, stopped.err
    assert not Path("out/results.json").exists()
    resumed = stemma("resume", "out", "--json")
    assert resumed.code == 0 and len(resumed.json["cells"]) == 2, resumed.err
    again = stemma(*COMPARE, "--json")
    assert again.code == 0 and again.json["cells"] == resumed.json["cells"], again.err


def test_a_refused_comparison_leaves_no_files(workspace, capsys):
    assert main([*COMPARE, "training.warmup_steps=9000"]) == 2
    assert "before anything is trained" in capsys.readouterr().err
    assert not Path("out").exists() and not leftovers()


@pytest.mark.parametrize("words", [COMPARE, ABLATE, CLAIM], ids=["compare", "ablate", "claims run"])
def test_overwrite_starts_a_lab_anew(workspace, monkeypatch, capsys, words):
    monkeypatch.setattr("stemma.lab.run_experiment.split_text", interrupt)
    Path("out/text").mkdir(parents=True)  # as a lab leaves it that was killed before lab.json existed
    assert main(words) == 2 and "add --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 130
    assert Path("out/lab.json").is_file() and not Path("out/text").exists()


# --- folders in use ---------------------------------------------------------------------------------------------------

HOLD = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


@contextmanager
def locked_by_another_process(folder: str):
    """Lock the folder as a training run does."""
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield


@pytest.mark.parametrize(("words", "busy"), [
    ([*PRETRAIN, "corpus"], "out"), (["finetune", "classify", *CLASSIFY], "out"), (COMPARE, "out/cells/0123"),
    (["pipeline", "plan.toml", "--out", "out"], "out/stages/general"),
    (["quickstart", "--out", "out"], "out/run"),
    (["corpus", "build", "text.txt", "--tokenizer", "tok", "--out", "out"], "out")],
    ids=["pretrain", "finetune", "compare", "pipeline", "quickstart", "corpus build"])
def test_a_locked_folder_is_not_replaced(workspace, monkeypatch, capsys, words, busy):
    # keeps the test short if the command is not refused
    monkeypatch.setattr("stemma.lab.quickstart.python_docs.collect_pages", interrupt)
    Path(busy).mkdir(parents=True)
    Path("out/quickstart.json").write_text("{}")
    with locked_by_another_process(busy):
        assert main([*words, "--overwrite"]) == 2
    assert f"another process is at work in {busy}, which --overwrite would replace" in capsys.readouterr().err
    assert Path(busy).is_dir() and Path("out/quickstart.json").is_file() and not leftovers()


def test_the_process_that_locked_a_folder_may_replace_it(tmp_path):
    from stemma.atomic_files import atomic_folder

    (tmp_path / "out").mkdir()
    with lock_folder(tmp_path / "out"), atomic_folder(tmp_path / "out", overwrite=True) as folder:
        (folder / "new").touch()
    assert (tmp_path / "out/new").is_file()


# --- no space ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize(("fails", "advised"), [(1, "run the same command again"), (3, "`stemma resume out` goes on")])
def test_the_advice_for_a_full_disk_works(workspace, monkeypatch, capsys, fails, advised, error_number):
    """Before the first checkpoint the command is repeated; after it the run can be resumed."""
    from stemma.training import checkpoints

    calls, write = [], checkpoints.save_file

    def full(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) >= fails:
            raise OSError(error_number, os.strerror(error_number))
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        assert main([*PRETRAIN, "corpus"]) == 2
    stderr = capsys.readouterr().err
    assert advised in stderr and "What was saved before is untouched." in stderr
    if error_number == errno.ENOSPC:
        assert main([*PRETRAIN, "corpus"] if fails == 1 else ["resume", "out"]) == 0


def test_the_error_for_a_full_disk_in_a_cell_names_the_lab(workspace, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise DiskFullError("the disk is full while writing somewhere; free some space")

    monkeypatch.setattr("stemma.lab.cell_runner.resume", full)
    assert main(COMPARE) == 2
    assert "free some space, and `stemma resume out` goes on from there." in capsys.readouterr().err


# --- one file, one cell -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["os.fsync", "stemma.atomic_files.Path.replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, failing, error):
    def fail(*_: object) -> None:
        raise error

    file = tmp_path / "state.json"
    atomic_write(file, "old")
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(failing, fail)
        atomic_write(file, "new, and longer")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_an_open_reader_sees_the_old_content_while_a_file_is_replaced(tmp_path):
    file = tmp_path / "state.json"
    atomic_write(file, "old" * 1000)
    with file.open() as reader:
        start = reader.read(100)
        atomic_write(file, "new")
        assert start + reader.read() == "old" * 1000
    assert file.read_text() == "new"


def test_the_digest_of_a_cell_depends_on_all_its_inputs(tmp_path):
    """On the recipe, the text, the seed, and the budget's unit and amount, but not on the variant's name."""
    def cell_digest(layers: int = 2, digest: str = "text", unit: str = "tokens", amount: float = 1000, seed: int = 0,
                    name: str = "a") -> str:
        variant = Variant(name, recipe("bert@tiny", [f"network.layers={layers}"]))
        experiment = Experiment("compare", "", (variant,), ComputeBudget(unit, amount), (seed,), None, ("text.txt",))
        shared = TextSplit(None, ("text.txt",), TextReadingOptions(), (), digest, {})
        return experiment_cells(experiment, shared, tmp_path)[0].digest

    others = [{"layers": 3}, {"digest": "other"}, {"unit": "flops"}, {"amount": 1001}, {"amount": 2000}, {"seed": 1}]
    digests = [cell_digest(), *(cell_digest(**other) for other in others)]
    assert len(set(digests)) == len(digests)
    assert cell_digest(name="b") == cell_digest()
