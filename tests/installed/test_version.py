"""The version comes from the last tag when the package is built; here it is asked of small repositories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

import pytest
import yaml

import stemma
from stemma.cli import main
from stemma.version import PACKAGE, UNKNOWN

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=folder, check=True,
                          capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path) -> Path:
    """Our pyproject.toml and next to nothing else, as the sources lie in an archive without git."""
    pytest.importorskip("setuptools_scm")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture
def repository(project) -> Path:
    git(project, "init", "--quiet")
    commit(project)
    return project


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")


def version_of(folder: Path, **environment: str) -> str:
    told = subprocess.run([sys.executable, "-m", "setuptools_scm"], cwd=folder, capture_output=True, text=True,
                          env=environment or None)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def test_a_tag_is_a_version(repository):
    git(repository, "tag", "v0.3.0")
    assert version_of(repository) == "0.3.0"


def test_a_later_commit_is_a_development_version_of_the_next(repository):
    git(repository, "tag", "v0.3.0")
    commit(repository)
    commit(repository)
    number, _, node = version_of(repository).partition("+g")
    assert number == "0.3.1.dev2" and git(repository, "rev-parse", "HEAD").startswith(node) and len(node) >= 7


def test_other_tags_are_no_versions(repository):
    git(repository, "tag", "issue-20")
    assert version_of(repository).startswith("0.1.1.dev1+g")


def test_without_a_tag_the_count_begins_at_the_fallback(repository):
    commit(repository)
    assert version_of(repository).startswith("0.1.1.dev2+g")


def test_without_git_it_is_the_fallback(project):
    assert version_of(project) == "0.1.0"


def test_where_git_is_not_installed_it_is_the_fallback(repository, tmp_path):
    assert version_of(repository, PATH=str(tmp_path)) == "0.1.0"


def test_fallback_changelog_and_citation_tell_the_same_last_version():
    with (ROOT / "pyproject.toml").open("rb") as file:
        fallback = tomllib.load(file)["tool"]["setuptools_scm"]["fallback_version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    sections = [line.removeprefix("## ") for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
                if line.startswith("## ")]
    assert str(cited["version"]) == fallback
    assert sections[:2] == ["[Unreleased]", f"[{fallback}] - {cited['date-released']}"]


def test_it_is_the_installed_one_everywhere(capsys):
    assert stemma.__version__ == installed("stemma-lm")
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"stemma {stemma.__version__} (Python 3.") and f"torch {installed('torch')}" in said
    assert said.count("\n") == 1


def test_sources_that_are_not_installed_have_none(tmp_path):
    code = "import json, stemma, stemma.version as v; print(json.dumps([stemma.__version__, v.described()]))"
    (tmp_path / "stemma").symlink_to(Path(stemma.__file__).parent)  # beside no metadata
    told = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    assert told.returncode == 0, told.stderr
    version, said = json.loads(told.stdout)
    assert version == UNKNOWN and said.startswith(f"stemma {UNKNOWN} (Python 3.")


def test_no_byte_of_a_run_depends_on_the_version(tmp_path, corpus_folder, monkeypatch):
    """Two commits write the same files, so that they can be compared."""
    marker = "9.8.7.dev6+gmarker"
    monkeypatch.setattr("stemma.version.VERSION", marker)
    monkeypatch.setattr("importlib.metadata.version", lambda name: marker if name == PACKAGE else installed(name))
    stemma.pretrain("bert@tiny", corpus=corpus_folder, out=tmp_path / "run", steps=1)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"run.json", "recipe.toml", "model.safetensors", "config.json"} <= {path.name for path in files}
    assert [path.name for path in files if marker.encode() in path.read_bytes()] == []
