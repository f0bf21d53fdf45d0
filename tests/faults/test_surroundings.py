"""Output paths: special files, symbolic links, folders of other programs, and temporary files of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest
from random_models import save_random

from stemma import atomic_files
from stemma.atomic_files import atomic_file, atomic_folder, atomic_write, refuse_special_file
from stemma.cli import main
from stemma.errors import UserError


@pytest.fixture(scope="session")
def small_model(tmp_path_factory, tokenizer_folder) -> Path:
    return save_random(tmp_path_factory.mktemp("small-model") / "model", tokenizer_folder)


@pytest.fixture(scope="session")
def small_classifier(tmp_path_factory, tokenizer_folder) -> Path:
    return save_random(tmp_path_factory.mktemp("classifier") / "model", tokenizer_folder, labels=("no", "yes"))


@pytest.fixture
def workspace(tmp_path, monkeypatch, text_file, small_model, small_classifier, tokenizer_folder, corpus_folder) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(text_file, "good.txt")
    Path("rows.tsv").write_text("text\tlabel\nthe old clerk\tyes\na young reader\tno\n")
    for name, folder in (("model", small_model), ("judge", small_classifier), ("tok", tokenizer_folder),
                         ("corpus", corpus_folder)):
        Path(name).symlink_to(folder)
    return tmp_path


def refusal(capsys, *words: object) -> str:
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 2 and captured.err.startswith("error: ") and captured.out == "", (code, captured)
    assert "internal error" not in captured.err and "Traceback" not in captured.err
    return captured.err


# ---- special files ----

WRITERS = {
    "embed": ["embed", "model", "good.txt"], "predict": ["predict", "judge", "good.txt"],
    "evaluate": ["evaluate", "judge", "--data", "rows.tsv"],
    "tokenizer": ["tokenizer", "train", "good.txt", "--kind", "word", "--vocab-size", "200"],
    "corpus": ["corpus", "build", "good.txt", "--tokenizer", "tok"],
    "pretrain": ["pretrain", "bert@tiny", "--corpus", "corpus", "--steps", "1"],
    "finetune": ["finetune", "classify", "--model", "model", "--train", "rows.tsv", "--dev", "rows.tsv", "--steps",
                 "1"],
    "clean": ["clean", "good.txt"], "quickstart": ["quickstart"],
}


def make_special_file(kind: str, name: Path) -> None:
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(name.name)  # relative: the name of a socket may have at most 108 characters
    else:
        try:
            os.mknod(name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # a second /dev/null; the real one is not touched
        except PermissionError:
            pytest.skip("this user may not make a device")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("verb", WRITERS)
def test_no_command_replaces_a_special_file(workspace, capsys, verb, kind):
    path = Path("path.txt")
    make_special_file(kind, path)
    before = path.lstat()
    for more in ([], ["--overwrite"]):
        if verb != "clean" or not more:
            assert f"path.txt is a {'named pipe' if kind == 'pipe' else kind}" in refusal(
                capsys, *WRITERS[verb], "--out", path, *more)
    assert path.lstat() == before
    link = Path("link.txt")
    link.symlink_to(path)
    assert "link.txt is a " in refusal(capsys, *WRITERS[verb], "--out", link)
    assert path.lstat() == before and link.is_symlink()


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/not-there.txt"])
def test_paths_under_dev_and_proc_are_special_files(path):
    """Only the check runs: no command is tried on the real devices."""
    with pytest.raises(UserError, match=f"{path} is a device"):
        refuse_special_file(Path(path))


@pytest.mark.parametrize("name", ["stdout", "new.txt"])
@pytest.mark.parametrize("verb", ["embed", "tokenizer"])
def test_a_device_path_that_links_to_a_file_is_refused(workspace, monkeypatch, capsys, verb, name):
    """As in `... --out /dev/stdout > file`. A temporary folder replaces /dev."""
    Path("system").mkdir()
    Path("file").write_text("kept")
    Path("system/stdout").symlink_to("../file")
    monkeypatch.setattr(atomic_files, "SYSTEM", (str(workspace / "system"),), raising=False)
    assert f"system/{name} is a device" in refusal(capsys, *WRITERS[verb], "--out", f"system/{name}", "--overwrite")
    assert Path("file").read_text() == "kept" and Path("system/stdout").is_symlink()
    assert [path.name for path in Path("system").iterdir()] == ["stdout"]


@pytest.mark.parametrize("verb", ["tokenizer", "corpus", "pretrain", "finetune", "evaluate"])
def test_overwrite_does_not_delete_a_folder_that_stemma_did_not_create(workspace, capsys, verb):
    Path("photos").mkdir()
    Path("photos/holiday.jpg").write_bytes(b"sea")
    assert "photos is a folder that stemma did not make" in refusal(
        capsys, *WRITERS[verb], "--out", "photos", "--overwrite")
    assert Path("photos/holiday.jpg").read_bytes() == b"sea"


def test_a_symbolic_link_stays_and_its_target_is_replaced(workspace):
    Path("target").mkdir()
    Path("target/file").write_text("old")
    Path("file").symlink_to("target/file")
    atomic_write(Path("file"), "new")
    assert Path("file").is_symlink() and Path("target/file").read_text() == "new"
    assert main([*WRITERS["tokenizer"], "--out", "target/tokenizer"]) == 0
    Path("linked").symlink_to("target/tokenizer")
    Path("target/tokenizer/mark").touch()
    assert main([*WRITERS["tokenizer"], "--out", "linked", "--overwrite"]) == 0
    assert Path("linked").is_symlink() and Path("linked/tokenizer.json").is_file()
    assert not Path("linked/mark").exists()
    assert sorted(path.name for path in Path("target").iterdir()) == ["file", "tokenizer"]
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


# ---- temporary files of killed processes ----

def make_leftover(name: str, ending: str = "tmp", suffix: str = "0123abcd") -> Path:
    folder = Path(f".{name}.{suffix}.{ending}")
    folder.mkdir()
    (folder / "half").write_text("written")
    return folder


@pytest.mark.parametrize("verb", ["tokenizer", "corpus", "embed", "predict", "evaluate"])
def test_a_command_removes_the_temporary_files_of_a_killed_one(workspace, verb):
    """Only those of the same output path, and not those that a running process has locked."""
    dead, other = make_leftover("made"), make_leftover("other")
    file = Path(".made.99999999.tmp")
    file.write_text("half")
    alien = Path(".made.notes.tmp")
    alien.write_text("the user's own")
    living = make_leftover("made", suffix="11111111")
    handle = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert main([*WRITERS[verb], "--out", "made"]) == 0
    finally:
        os.close(handle)
    assert not dead.exists() and not file.exists()
    assert living.is_dir() and other.is_dir() and alien.is_file()


def test_two_writers_of_one_path_do_not_disturb_each_other(workspace):
    """The temporary files of a running writer are not removed as those of a killed one are."""
    with atomic_folder(Path("made"), overwrite=True) as first:
        (first / "a").write_text("1")
        with atomic_folder(Path("made")) as second:
            (second / "b").write_text("2")
        assert Path("made/b").is_file() and (first / "a").is_file()
    assert sorted(path.name for path in Path("made").iterdir()) == ["a", "checksums.json"]
    with atomic_file(Path("file")) as file:
        atomic_write(Path("file"), "2")
        file.write(b"1")
    assert Path("file").read_text() == "1"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_folder_renamed_by_a_killed_overwrite_is_restored(workspace, capsys):
    """The old folder has its temporary name and the new one is missing: the next command restores the old one."""
    assert main([*WRITERS["tokenizer"], "--out", "made"]) == 0
    before = Path("made/tokenizer.json").read_bytes()
    Path("made").rename(".made.0123abcd.old")
    make_leftover("made", suffix="11111111")
    assert "made exists and is not empty" in refusal(capsys, *WRITERS["tokenizer"], "--out", "made")
    assert Path("made/tokenizer.json").read_bytes() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]
