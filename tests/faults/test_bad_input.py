"""Wrong input gives one error message that says what, where and what to do, and leaves no files behind."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import start, stemma
from conftest import small_text

from stemma.cli import main
from stemma.text.train_tokenizer import train_tokenizer

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=5"]
PRETRAIN = ["pretrain", "bert@tiny", *SMALL, "--steps", "2", "--out", "run"]
LATIN = "Une leçon d'été\n".encode("latin-1") * 20


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus_folder) -> Path:
    """A small finished run."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(["pretrain", "bert@tiny", *SMALL, "--steps", "4", "--corpus", str(corpus_folder), "--out", str(run),
                 "training.checkpoint_every=2"]) == 0
    return run


@pytest.fixture
def workspace(tmp_path, monkeypatch, text_file, tokenizer_folder, corpus_folder, finished) -> Path:
    """The working directory, with valid and invalid input files; the cache is outside of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path.with_name(tmp_path.name + "-cache")))
    shutil.copy(text_file, "good.txt")
    for name, folder in (("tok", tokenizer_folder), ("corpus", corpus_folder), ("done", finished)):
        shutil.copytree(folder, name)
    Path("empty.txt").touch()
    Path("blank.txt").write_text(" \n\n\t\n")
    Path("word.txt").write_text("lonely\n")
    Path("latin.txt").write_bytes(LATIN)
    Path("binary.bin").write_bytes(b"text, then \0\1\2")
    Path("nul.txt").write_bytes(small_text(5).encode()[:100] + b"\0" + small_text(5).encode()[100:])
    Path("cut.txt.gz").write_bytes(gzip.compress(small_text(5).encode())[:-20])
    Path("nothing").mkdir()
    return tmp_path


def read_tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


def refusal(capsys, *words: object) -> str:
    """Run a command that must fail: exit code 2, the same error as JSON, and no file changed. Returns the error."""
    before = read_tree(Path())
    arguments = [str(word) for word in words]
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, ""), captured.err
    lines = [line for line in captured.err.splitlines() if not line.startswith("note: ")]
    assert lines[0].startswith("error: ") and len("".join(lines)) > 30, captured.err
    assert all(line.startswith("  ") for line in lines[1:]) and "Traceback" not in captured.err
    assert read_tree(Path()) == before
    assert main([*arguments, "--json"]) == 2
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert lines[0] == "error: " + json.loads(printed)["error"]
    assert read_tree(Path()) == before
    return "\n".join(lines)


@pytest.mark.parametrize(("text", "message"), [
    ("empty.txt", "empty.txt"), ("blank.txt", "blank.txt"), ("nothing", "nothing"), ("gone.txt", "gone.txt"),
    ("goood.txt", 'did you mean "good.txt"'), ("no*.text", "no file matches"),
    ("latin.txt", "latin.txt is not utf-8 at byte 6 (0xe7); try --encoding latin-1, or --errors replace."),
    ("binary.bin", "binary.bin has a NUL byte at byte 11"), ("nul.txt", "nul.txt has a NUL byte at byte 100"),
    ("cut.txt.gz", "cut.txt.gz ends too early"),
])
@pytest.mark.parametrize("verb", [
    [*PRETRAIN, "--corpus"], ["tokenizer", "train", "--kind", "word", "--vocab-size", "200", "--out", "run"],
    ["corpus", "build", "--tokenizer", "tok", "--out", "run"], ["embed", "done", "--out", "run.npy"],
    ["inspect", "bert@tiny", "--corpus"],
], ids=["pretrain", "tokenizer", "corpus", "embed", "inspect"])
def test_unreadable_text_is_refused(workspace, capsys, verb, text, message):
    assert message in refusal(capsys, *verb, text)


@pytest.mark.parametrize(("text", "options"), [
    ("latin.txt", ["--encoding", "latin-1"]), ("latin.txt", ["--errors", "replace"]),
    ("nul.txt", ["--errors", "replace"]),
])
def test_the_suggested_option_makes_the_text_readable(workspace, capsys, text, options):
    assert main([*PRETRAIN, "corpus.validation=0.1", "--corpus", text, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2


@pytest.mark.parametrize(("options", "message"), [
    (["--encoding", "utf-9"], 'no text encoding "utf-9". Did you mean "utf-8"?'),
    (["--errors", "replac"], '--errors is "replac"'), (["--documents", "lines"], '--documents is "lines"'),
])
def test_unknown_reading_options_are_refused(workspace, capsys, options, message):
    assert message in refusal(capsys, *PRETRAIN, "--corpus", "good.txt", *options)


def test_a_corpus_too_small_for_one_row_is_refused(workspace, capsys):
    assert main(["corpus", "build", "word.txt", "--tokenizer", "tok", "--out", "small"]) == 0
    message = refusal(capsys, *PRETRAIN, "--corpus", "small", "corpus.sequence_length=3")
    assert "corpus.sequence_length" in message


def test_all_missing_special_tokens_of_a_tokenizer_are_named(workspace, capsys):
    train_tokenizer([Path("good.txt").read_text()], "word", 200, lowercase=True, roles=set()).save("plain")
    assert main(["corpus", "build", "good.txt", "--tokenizer", "plain", "--out", "bare"]) == 0
    message = refusal(capsys, *PRETRAIN, "--corpus", "bare")
    assert "bare" in message and "--for bert" in message
    assert all(f'"{role}"' in message for role in ("mask", "start", "separator")), message


def other_corpus() -> None:
    Path("other.txt").write_text(small_text(seed=5) + "Altogether different words stand here.\n")
    assert main(["tokenizer", "train", "other.txt", "--for", "bert", "--vocab-size", "250", "--out", "other-tok"]) == 0
    assert main(["corpus", "build", "other.txt", "--tokenizer", "other-tok", "--out", "other"]) == 0


def test_a_corpus_with_another_vocabulary_than_the_initial_model_is_refused(workspace, capsys):
    other_corpus()
    message = refusal(capsys, *PRETRAIN, "--corpus", "other", "--from", "done")
    assert "done" in message and "--tokenizer" in message
    advised = message.split("`")[1].removeprefix("--tokenizer ")
    assert main(["corpus", "build", "other.txt", "--tokenizer", advised, "--out", "fitting"]) == 0
    assert main([*PRETRAIN, "--corpus", "fitting", "--from", "done"]) == 0


def test_resuming_with_another_corpus_is_refused(workspace, capsys):
    other_corpus()
    assert main([*PRETRAIN, "--corpus", "corpus"]) == 0
    for name in ("result.json", "model", "checkpoints"):
        path = Path("run", name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.move("corpus", "old")
    assert "there is no corpus" in refusal(capsys, "resume", "run")
    shutil.copytree("other", "corpus")
    assert "the corpus of run is not the one it was started with" in refusal(capsys, "resume", "run")


@pytest.mark.parametrize(("words", "message"), [
    (["pretrain", "brt"], 'no recipe "brt". Did you mean "bert"?'),
    (["pretrain", "bert@tinny"], 'no size "tinny" of bert. Did you mean "tiny"?'),
    (["pretrain", "gone.toml"], "cannot read the recipe gone.toml"),
    (["pretrain", "bert@tiny", "network.hads=2"], "network.heads"),
    (["pretrain", "bert@tiny", "network.layers=many"], "network.layers"),
    (["pretrain", "bert@tiny", "training.batch_size=0"], "training.batch_size"),
    (["pretrain", "bert@tiny", "network.width=30", "network.heads=4"], "network.heads"),
    (["pretrain", "bert@tiny", "objective.masked_lm.mask=0.9", "objective.masked_lm.random=0.3"], "add up to"),
    (["pretrain", "bert@tiny", "corpus.packing=stream"], "next_sentence"),
    (["pretrain", "bert@tiny", "network"], "network"),
    (["pretrain", "transformer@tiny"], "holds plain text"),
    (["pretrain", "bert@tiny", "remove=objective.masked_lm", "remove=objective.next_sentence"], "no objective"),
])
def test_an_invalid_recipe_is_refused(workspace, capsys, words, message):
    assert message in refusal(capsys, *words, "--corpus", "corpus", "--out", "run", "--steps", "2")


def test_all_problems_of_a_recipe_are_reported_at_once(workspace, capsys):
    message = refusal(capsys, *PRETRAIN, "--corpus", "corpus", "network.hads=2", "training.learning_rate=-1",
                              "objective.masked_lm.rate=yes")
    assert message.startswith("error: 3 problems") and message.count("\n") == 3


@pytest.mark.parametrize(("budget", "message"), [
    (["--steps", "0"], "--steps must be a number greater than 0, not 0"), (["--minutes", "-1"], "--minutes must be"),
    (["--tokens", "0"], "--tokens must be"), (["--minutes", "nan"], "--minutes must be"),
    (["--minutes", "inf"], "--minutes must be"), (["--steps", "2", "--tokens", "9"], "exclude each other"),
    (["--steps", "two"], "--steps"), (["--seed", "-1", "--steps", "1"], "--seed"),
    (["--seed", str(2**64), "--steps", "1"], "--seed"),
])
def test_an_invalid_budget_or_seed_is_refused(workspace, capsys, budget, message):
    assert message in refusal(capsys, "pretrain", "bert@tiny", "--corpus", "corpus", "--out", "run", *budget)


@pytest.mark.parametrize(("out", "message"), [
    ("good.txt", "good.txt exists"), ("done", "done exists and is not empty; choose another --out or add --overwrite"),
    ("good.txt/run", "good.txt is a file"), ("good.txt/deep/run", "good.txt is a file"),
    ("/proc/run", "cannot make the folder /proc/run"), ("n" * 300, "name too long"),
])
@pytest.mark.parametrize("verb", [
    ["pretrain", "bert@tiny", *SMALL, "--steps", "2", "--corpus", "corpus"],
    ["tokenizer", "train", "good.txt", "--kind", "word", "--vocab-size", "200"],
    ["corpus", "build", "good.txt", "--tokenizer", "tok"],
], ids=["pretrain", "tokenizer", "corpus"])
def test_an_output_folder_that_cannot_be_written_is_refused(workspace, capsys, verb, out, message):
    assert message in refusal(capsys, *verb, "--out", out)


@pytest.mark.parametrize(("out", "message"), [
    ("good.txt", "good.txt exists"), ("done", "done is a folder"), ("nothing", "nothing is a folder"),
    ("good.txt/vectors.npy", "good.txt is a file"), ("/proc/vectors.npy", "/proc/vectors.npy"),
])
def test_an_output_file_that_cannot_be_written_is_refused(workspace, capsys, out, message):
    assert message in refusal(capsys, "embed", "done", "good.txt", "--out", out)


def test_overwriting_with_a_missing_text_keeps_the_old_run(workspace, capsys):
    message = refusal(capsys, "pretrain", "bert@tiny", "--corpus", "gone.txt", "--out", "done", "--overwrite")
    assert "gone.txt" in message


@pytest.mark.parametrize("name", ["shard-00000/tokens.bin", "shard-00000/word_starts.bin", "documents.bin",
                                  "manifest.json", "tokenizer/tokenizer.json", "checksums.json"])
@pytest.mark.parametrize("how", ["altered", "truncated", "missing"])
def test_a_damaged_corpus_is_refused(workspace, capsys, name, how):
    damage(Path("corpus", name), how)
    message = refusal(capsys, *PRETRAIN, "--corpus", "corpus")
    assert "stemma corpus build" in message
    # a changed checksums.json may blame any file
    assert Path(name).name in message or (name, how) == ("checksums.json", "altered")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "recipe.toml"])
@pytest.mark.parametrize("how", ["altered", "truncated", "missing"])
def test_a_damaged_model_is_refused(workspace, capsys, name, how):
    damage(Path("done/model", name), how)
    for verb in (["fill", "done", "the [MASK]"], ["embed", "done", "good.txt", "--out", "v.npy"],
                 [*PRETRAIN, "--corpus", "corpus", "--from", "done"]):
        message = refusal(capsys, *verb)
        assert name in message or (name == "config.json" and "`stemma resume" in message)


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize(("change", "message"), [
    (lambda: Path("done/model/config.json").write_text('{"model_type": "brt"}'), 'model_type "brt"'),
    (lambda: Path("done/model/config.json").write_text('{"model_type": '), "config.json"),
    (lambda: Path("done/model/model.safetensors").unlink(), "model.safetensors"),
    (lambda: shutil.rmtree("done/model"), "has no model yet"),
])
@pytest.mark.parametrize("checksums", [True, False])
def test_an_invalid_model_folder_is_refused(workspace, capsys, change, message, checksums):
    change()
    if not checksums:
        Path("done/model/checksums.json").unlink(missing_ok=True)
    for verb in (["fill", "done", "the [MASK]"], [*PRETRAIN, "--corpus", "corpus", "--from", "done"]):
        error = refusal(capsys, *verb)
        assert message in error or (checksums and "config.json" in error)


@pytest.mark.parametrize(("where", "message"), [
    ("nothing", "nothing is no model"), ("gone", "there is no model at"), ("corpus", "corpus is no model"),
    ("good.txt", "good.txt is no model"),
])
def test_a_path_without_a_model_is_refused(workspace, capsys, where, message):
    assert message in refusal(capsys, "fill", where, "the [MASK]")
    assert message in refusal(capsys, *PRETRAIN, "--corpus", "corpus", "--from", where)
    assert message in refusal(capsys, *PRETRAIN, "--corpus", "good.txt", "--from", where)


def test_invalid_arguments_of_fill_and_embed_are_refused(workspace, capsys):
    assert "write [MASK]" in refusal(capsys, "fill", "done", "no mask here")
    assert "--top" in refusal(capsys, "fill", "done", "a [MASK]", "--top", "0")
    assert "tokens" in refusal(capsys, "fill", "done", "[MASK] " + "word " * 3000)
    assert "--pooling" in refusal(capsys, "embed", "done", "good.txt", "--out", "v.npy", "--pooling", "max")


def test_fill_without_a_language_model_head_is_refused(workspace, capsys):
    import stemma
    from stemma.objectives import build_network

    model = stemma.load("done")
    resolved = model.recipe.with_changes({"remove": ["objective.masked_lm"]}, "test")
    model.network = build_network(resolved, model.network.vocab_size).eval()
    stemma.save(model, "headless")
    assert "no language-model head" in refusal(capsys, "fill", "headless", "the [MASK]")


def test_resuming_a_folder_that_is_not_a_valid_run_is_refused(workspace, capsys):
    for where in ("nothing", "gone", "corpus", "good.txt", "done/model"):
        assert f"{where} is not a run" in refusal(capsys, "resume", where)
    Path("done/result.json").unlink()
    plan = Path("done/run.json").read_text()
    for damaged in (plan[: len(plan) // 2], "{}", plan.replace("budget", "bugdet"), "[1]"):
        Path("done/run.json").write_text(damaged)
        assert "run.json is damaged" in refusal(capsys, "resume", "done")
    Path("done/run.json").write_text(plan)
    damage(Path("done/recipe.toml"), "missing")
    assert "recipe.toml" in refusal(capsys, "resume", "done")


@pytest.mark.parametrize(("name", "how"), [("weights.safetensors", "altered"), ("optimizer.safetensors", "truncated"),
                                           ("state.json", "missing"), ("checksums.json", "truncated")])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(workspace, capsys, name, how):
    """If the newest is damaged, the run resumes from the one before to the same bytes. If all are, it is an error."""
    expected = Path("done/model/model.safetensors").read_bytes()
    for name_to_delete in ("result.json", "model"):
        path = Path("done", name_to_delete)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    newest, before = Path("done/checkpoints/step-4"), Path("done/checkpoints/step-2")
    damage(before / name, how)
    intact = Path("intact")
    newest.rename(intact)
    message = refusal(capsys, "resume", "done")
    assert "step-2" in message and "delete done/checkpoints" in message

    intact.rename(newest)
    damage(newest / name, how)
    assert "delete done/checkpoints" in refusal(capsys, "resume", "done")

    shutil.rmtree("done/checkpoints")
    assert main(["resume", "done"]) == 0  # as advised
    assert Path("done/model/model.safetensors").read_bytes() == expected

    shutil.rmtree("done/model")
    Path("done/result.json").unlink()
    damage(newest / name, how)
    capsys.readouterr()
    assert main(["resume", "done"]) == 0
    stderr = capsys.readouterr().err
    assert "note: " in stderr and "step-4" in stderr and "going on from step-2" in stderr
    assert Path("done/model/model.safetensors").read_bytes() == expected


def test_windows_line_endings_give_the_same_tokens(workspace, capsys):
    Path("windows.txt").write_bytes(Path("good.txt").read_bytes().replace(b"\n", b"\r\n"))
    for name in ("good", "windows"):
        assert main(["corpus", "build", f"{name}.txt", "--tokenizer", "tok", "--out", f"{name}-corpus"]) == 0
    for file in ("shard-00000/tokens.bin", "documents.bin", "sentences.bin"):
        assert Path("good-corpus", file).read_bytes() == Path("windows-corpus", file).read_bytes()


@pytest.mark.parametrize("megabytes", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_huge_line_is_read_in_bounded_memory(tmp_path, tokenizer_folder, megabytes):
    """The line is read in passages, so memory does not grow with it."""
    words = small_text(60).replace("\n", " ").encode()
    with (tmp_path / "line.txt").open("wb") as file:
        for _ in range(megabytes * 1_000_000 // len(words)):
            file.write(words)
    # a small process in between measures: a child's peak memory starts at that of its parent
    measure = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)")
    built = subprocess.run(
        [sys.executable, "-c", measure, sys.executable, "-m", "stemma", "corpus", "build", tmp_path / "line.txt",
         "--tokenizer", tokenizer_folder, "--out", tmp_path / "corpus", "--workers", "2", "--json"],
        capture_output=True, text=True, check=False)
    assert built.returncode == 0 and "is read in pieces" in built.stderr, built.stderr
    result, kilobytes = map(json.loads, built.stdout.splitlines())
    assert result["documents"] == 1 and result["tokens"] > megabytes * 100_000
    assert kilobytes < 300_000, "of the largest process"


def test_a_run_on_a_full_disk_stops_and_resumes_to_the_same_bytes(tmp_path, corpus_folder):
    """The run stops with an error, its checkpoints stay valid, and with free space it resumes to the same bytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        command = ["pretrain", "bert@tiny", *SMALL, "--corpus", corpus_folder, "--steps", "30",
                   "training.checkpoint_every=1", "training.log_every=1", "--json"]
        uninterrupted = stemma(*command, "--out", tmp_path / "uninterrupted")
        process = start(*command, "--out", disk / "run")
        while not (disk / "run/checkpoints/step-3").is_dir():
            time.sleep(0.001)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        stopped = process.wait()
        assert stopped.code == 2 and stopped.err.startswith("error: the disk is full while writing"), stopped.err
        assert set(stopped.json) == {"error", "problems"}
        assert (disk / "run/checkpoints").is_dir() and not (disk / "run/model").exists()
        again = stemma("resume", disk / "run")
        assert again.code == 2 and again.err.startswith("error: the disk is full while writing"), again.err

        (disk / "filler").unlink()
        resumed = stemma("resume", disk / "run", "--json")
        assert resumed.code == 0, resumed.err
        assert resumed.json["validation_loss"] == uninterrupted.json["validation_loss"]
        assert model_bytes(disk / "run") == model_bytes(tmp_path / "uninterrupted")
        steps = [json.loads(line)["step"] for line in (disk / "run/log.jsonl").read_text().splitlines()]
        assert steps == [*range(1, 31), 30]
    finally:
        subprocess.run(["umount", disk], check=True)


def model_bytes(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()
