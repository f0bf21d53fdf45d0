"""The version of the package comes from the last git tag; small repositories test it."""

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
    """A folder with only our pyproject.toml and no git repository, as in an archive."""
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
    result = subprocess.run([sys.executable, "-m", "setuptools_scm"], cwd=folder, capture_output=True, text=True,
                            env=environment or None)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_version_of_a_tagged_commit_is_its_tag(repository):
    git(repository, "tag", "v0.3.0")
    assert version_of(repository) == "0.3.0"


def test_a_commit_after_a_tag_is_a_development_version_of_the_next_version(repository):
    git(repository, "tag", "v0.3.0")
    commit(repository)
    commit(repository)
    version, _, node = version_of(repository).partition("+g")
    assert version == "0.3.1.dev2" and git(repository, "rev-parse", "HEAD").startswith(node) and len(node) >= 7


def test_tags_that_are_not_versions_are_ignored(repository):
    git(repository, "tag", "issue-20")
    assert version_of(repository).startswith("0.1.1.dev1+g")


def test_without_a_tag_commits_are_counted_from_the_fallback_version(repository):
    commit(repository)
    assert version_of(repository).startswith("0.1.1.dev2+g")


def test_without_a_repository_the_version_is_the_fallback(project):
    assert version_of(project) == "0.1.0"


def test_without_git_the_version_is_the_fallback(repository, tmp_path):
    assert version_of(repository, PATH=str(tmp_path)) == "0.1.0"


def test_fallback_changelog_and_citation_have_the_same_version():
    with (ROOT / "pyproject.toml").open("rb") as file:
        fallback = tomllib.load(file)["tool"]["setuptools_scm"]["fallback_version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    sections = [line.removeprefix("## ") for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
                if line.startswith("## ")]
    assert str(cited["version"]) == fallback
    assert sections[:2] == ["[Unreleased]", f"[{fallback}] - {cited['date-released']}"]


def test_the_command_and_the_module_have_the_installed_version(capsys):
    assert stemma.__version__ == installed("stemma-lm")
    assert main(["--version"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"stemma {stemma.__version__} (Python 3.") and f"torch {installed('torch')}" in output
    assert output.count("\n") == 1


def test_sources_that_are_not_installed_have_an_unknown_version(tmp_path):
    code = "import json, stemma, stemma.version as v; print(json.dumps([stemma.__version__, v.described()]))"
    (tmp_path / "stemma").symlink_to(Path(stemma.__file__).parent)  # without metadata
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True,
                            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    assert result.returncode == 0, result.stderr
    version, description = json.loads(result.stdout)
    assert version == UNKNOWN and description.startswith(f"stemma {UNKNOWN} (Python 3.")


def test_files_of_a_run_do_not_contain_the_version(tmp_path, corpus_folder, monkeypatch):
    """Otherwise runs of two commits could not be compared byte by byte."""
    marker = "9.8.7.dev6+gmarker"
    monkeypatch.setattr("stemma.version.VERSION", marker)
    monkeypatch.setattr("importlib.metadata.version", lambda name: marker if name == PACKAGE else installed(name))
    stemma.pretrain("bert@tiny", corpus=corpus_folder, out=tmp_path / "run", steps=1)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"run.json", "recipe.toml", "model.safetensors", "config.json"} <= {path.name for path in files}
    assert [path.name for path in files if marker.encode() in path.read_bytes()] == []
