"""The process and its surroundings: special files, closed streams, few handles, what killed processes left behind."""

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
def here(tmp_path, monkeypatch, text_file, small_model, small_classifier, tokenizer_folder, corpus_folder) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(text_file, "good.txt")
    Path("rows.tsv").write_text("text\tlabel\nthe old clerk\tyes\na young reader\tno\n")
    for name, folder in (("model", small_model), ("judge", small_classifier), ("tok", tokenizer_folder),
                         ("corpus", corpus_folder)):
        Path(name).symlink_to(folder)
    return tmp_path


def refused(capsys, *words: object) -> str:
    capsys.readouterr()
    code = main([str(word) for word in words])
    told = capsys.readouterr()
    assert code == 2 and told.err.startswith("error: ") and told.out == "", (code, told)
    assert "internal error" not in told.err and "Traceback" not in told.err
    return told.err


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


def special(kind: str, name: Path) -> None:
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(name.name)  # its name may be 108 characters long: relative
    else:
        try:
            os.mknod(name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # what /dev/null is; the machine's own is left alone
        except PermissionError:
            pytest.skip("this user may not make a device")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("verb", WRITERS)
def test_no_verb_replaces_a_special_file(here, capsys, verb, kind):
    place = Path("place.txt")
    special(kind, place)
    before = place.lstat()
    for more in ([], ["--overwrite"]):
        if verb != "clean" or not more:
            assert f"place.txt is a {'named pipe' if kind == 'pipe' else kind}" in refused(
                capsys, *WRITERS[verb], "--out", place, *more)
    assert place.lstat() == before
    link = Path("link.txt")
    link.symlink_to(place)
    assert "link.txt is a " in refused(capsys, *WRITERS[verb], "--out", link)
    assert place.lstat() == before and link.is_symlink()


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/not-there.txt"])
def test_the_systems_own_names_are_special(place):
    """Only looked at: no verb is ever tried on the machine's own."""
    with pytest.raises(UserError, match=f"{place} is a device"):
        refuse_special_file(Path(place))


@pytest.mark.parametrize("name", ["stdout", "new.txt"])
@pytest.mark.parametrize("verb", ["embed", "tokenizer"])
def test_a_name_of_the_system_is_refused_also_where_it_leads_to_a_file(here, monkeypatch, capsys, verb, name):
    """As /dev/stdout does in `... --out /dev/stdout > file`; a folder of our own plays the part of /dev."""
    Path("system").mkdir()
    Path("file").write_text("kept")
    Path("system/stdout").symlink_to("../file")
    monkeypatch.setattr(atomic_files, "SYSTEM", (str(here / "system"),), raising=False)
    assert f"system/{name} is a device" in refused(capsys, *WRITERS[verb], "--out", f"system/{name}", "--overwrite")
    assert Path("file").read_text() == "kept" and Path("system/stdout").is_symlink()
    assert [path.name for path in Path("system").iterdir()] == ["stdout"]


@pytest.mark.parametrize("verb", ["tokenizer", "corpus", "pretrain", "finetune", "evaluate"])
def test_overwrite_does_not_delete_a_folder_of_somebody_else(here, capsys, verb):
    Path("photos").mkdir()
    Path("photos/holiday.jpg").write_bytes(b"sea")
    assert "photos is a folder that stemma did not make" in refused(
        capsys, *WRITERS[verb], "--out", "photos", "--overwrite")
    assert Path("photos/holiday.jpg").read_bytes() == b"sea"


def test_a_link_stays_and_what_it_points_to_is_replaced(here):
    Path("elsewhere").mkdir()
    Path("elsewhere/file").write_text("old")
    Path("file").symlink_to("elsewhere/file")
    atomic_write(Path("file"), "new")
    assert Path("file").is_symlink() and Path("elsewhere/file").read_text() == "new"
    assert main([*WRITERS["tokenizer"], "--out", "elsewhere/tokenizer"]) == 0
    Path("linked").symlink_to("elsewhere/tokenizer")
    Path("elsewhere/tokenizer/mark").touch()
    assert main([*WRITERS["tokenizer"], "--out", "linked", "--overwrite"]) == 0
    assert Path("linked").is_symlink() and Path("linked/tokenizer.json").is_file()
    assert not Path("linked/mark").exists()
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == ["file", "tokenizer"]
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


# ---- what a killed process left ----

def left_behind(name: str, ending: str = "tmp", number: str = "0123abcd") -> Path:
    folder = Path(f".{name}.{number}.{ending}")
    folder.mkdir()
    (folder / "half").write_text("written")
    return folder


@pytest.mark.parametrize("verb", ["tokenizer", "corpus", "embed", "predict", "evaluate"])
def test_the_next_run_of_a_verb_clears_what_a_killed_one_left(here, verb):
    """Only what has its name, and not what a living process holds."""
    dead, other = left_behind("made"), left_behind("other")
    file = Path(".made.99999999.tmp")
    file.write_text("half")
    alien = Path(".made.notes.tmp")
    alien.write_text("the user's own")
    living = left_behind("made", number="11111111")
    handle = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert main([*WRITERS[verb], "--out", "made"]) == 0
    finally:
        os.close(handle)
    assert not dead.exists() and not file.exists()
    assert living.is_dir() and other.is_dir() and alien.is_file()


def test_two_writers_at_the_same_time(here):
    """What one writes is not what a killed process left: the other does not touch it."""
    with atomic_folder(Path("made"), overwrite=True) as first:
        (first / "a").write_text("1")
        with atomic_folder(Path("made")) as second:
            (second / "b").write_text("2")
        assert Path("made/b").is_file() and (first / "a").is_file()
    assert sorted(path.name for path in Path("made").iterdir()) == ["a", "checksums.json"]
    with atomic_file(Path("file")) as one:
        atomic_write(Path("file"), "2")
        one.write(b"1")
    assert Path("file").read_text() == "1"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_kill_between_two_renames_loses_nothing(here, capsys):
    """The old folder stands under another name and nothing in its place: it is put back before anything is made."""
    assert main([*WRITERS["tokenizer"], "--out", "made"]) == 0
    before = Path("made/tokenizer.json").read_bytes()
    Path("made").rename(".made.0123abcd.old")
    left_behind("made", number="11111111")
    assert "made exists and is not empty" in refused(capsys, *WRITERS["tokenizer"], "--out", "made")
    assert Path("made/tokenizer.json").read_bytes() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]
