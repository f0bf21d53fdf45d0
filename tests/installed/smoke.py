"""Smoke test of the wheel and the sdist in dist/, outside of the repository; `make test-dist` runs it.

Each is installed into a separate environment. To be fast and to work offline, the environment links to the installed
packages that the wheel requires, and to their requirements, but to no others. So a missing file, entry point or
requirement of the wheel makes the test fail.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = "stemma"
WORDS = ("old", "clerk", "reads", "writes", "letter", "garden", "river", "slowly", "never", "market", "house", "winter")
HOME_CHECK = """
import stemma, sys
from pathlib import Path
inside = [entry for entry in [stemma.__file__, *sys.path] if Path(entry).resolve().is_relative_to({root!r})]
assert not inside, f"the repository is on the path: {{inside}}"
assert Path(stemma.__file__).is_relative_to(sys.prefix), stemma.__file__
print(stemma.__version__)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="folder with one wheel and one sdist")
    folder = parser.parse_args().dist.resolve()
    wheel, sdist = only(folder, "*.whl"), only(folder, "*.tar.gz")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="stemma-dist-") as temporary:
        outside = Path(temporary)
        if outside.resolve().is_relative_to(ROOT):
            sys.exit(f"error: temporary files are inside of the repository ({outside}); set TMPDIR to another folder.")
        check_contents(wheel, sdist)
        with ThreadPoolExecutor() as executor:
            futures = {wheel.name: executor.submit(smoke, wheel, outside / "wheel"),
                       sdist.name: executor.submit(
                           lambda: smoke(build_wheel(sdist, outside / "rebuilt"), outside / "sdist"))}
        for name, future in futures.items():
            print(name, *future.result(), sep="\n  ")
    print(f"both work; {time.perf_counter() - begun:.0f} s")


def only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        sys.exit(f"error: {folder} has {len(files)} files {pattern}, and one is tested; `make dist` builds it.")
    return files[0]


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that the sdist has all tracked files and the wheel all tracked files of the package. Without git, the sdist
    is compared with the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    tracked = {name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()}
    if listing.returncode or not tracked:
        tracked = {f"src/{name}" for name in in_wheel}
    expected = {name.removeprefix("src/") for name in tracked if name.startswith(f"src/{PACKAGE}/")}
    problems = [f"the sdist lacks {name}" for name in sorted(tracked - in_sdist)]
    problems += [f"the wheel lacks {name}" for name in sorted(expected - in_wheel)]
    problems += [f"the wheel has {name}, which git does not track (add it, or delete it)"
                 for name in sorted(in_wheel - expected)]
    if problems:
        sys.exit("\n  ".join([f"error: {len(problems)} problems in the contents of {wheel.parent}", *problems]))
    print(f"contents: {len(in_wheel)} files in the wheel, {len(in_sdist)} in the sdist")


def build_wheel(sdist: Path, out: Path) -> Path:
    """Build a wheel from the sdist with pip, outside of a git repository."""
    out.mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--wheel-dir", ".", str(sdist), cwd=out)
    return only(out, "*.whl")


def smoke(wheel: Path, folder: Path) -> list[str]:
    """Install the wheel and run commands; returns each with its time."""
    environment, empty = folder / "environment", folder / "empty"
    empty.mkdir(parents=True)
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=empty)
    link_requirements(wheel, environment)
    run(*pip, "check", cwd=empty)

    timings: list[str] = []
    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def stemma(*arguments: str) -> str:
        begun = time.perf_counter()
        output = run(str(environment / "bin" / "stemma"), *arguments, cwd=empty, PATH=path)
        timings.append(f"{time.perf_counter() - begun:5.1f} s  stemma {' '.join(arguments)}")
        return output

    version = run(str(python), "-c", HOME_CHECK.format(root=str(ROOT)), cwd=empty).strip()
    expect(f"-{version}-" in wheel.name, f"stemma.__version__ is {version} and the wheel is {wheel.name}")
    expect(stemma("--version").startswith(f"stemma {version} "), "`stemma --version` prints another version")
    shown = stemma("tree")
    missing = [file.stem for file in (ROOT / "src/stemma/recipes").glob("*.toml") if file.stem not in shown]
    expect(not missing, f"`stemma tree` does not show {', '.join(missing)}")
    expect("masked_lm" in stemma("show", "bert@tiny"), "`stemma show` does not show the objective")
    listed = stemma("claims")
    expect("masks" in listed, "`stemma claims` lists no claims")
    (empty / "notes.txt").write_text("".join(sentences(2000)), encoding="utf-8")
    stemma("pretrain", "bert@tiny", "--corpus", "notes.txt", "--out", "run", "--steps", "5")
    for file in ("run/model/model.safetensors", "run/result.json", "run/report.html"):
        expect((empty / file).is_file(), f"the run has no {file}")
    expect("<style" in (empty / "run/report.html").read_text(encoding="utf-8"), "the report has no style sheet")
    expect(stemma("fill", "run", "the old [MASK] reads a letter").strip() != "", "`stemma fill` prints nothing")
    return timings


def link_requirements(wheel: Path, environment: Path) -> None:
    """Link to the installed requirements of the wheel, in a folder on the path of the environment."""
    links = environment / "requirements"
    links.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")).partition("/")[0]
        distributions = requirements_of(PathDistribution(zipfile.Path(archive, f"{metadata}/")))
    for package in distributions:
        for entry in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            source, link = Path(str(package.locate_file(entry))), links / entry
            if source.suffix != ".pth" and source.exists() and not link.exists():
                link.symlink_to(source)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "requirements.pth").write_text(f"{links}\n")


def requirements_of(package: Distribution) -> list[Distribution]:
    """All direct and indirect requirements of a package, without its extras."""
    distributions: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def follow(dependent: Distribution, extra: str) -> None:
        for requirement in map(Requirement, dependent.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            for required_extra in ("", *requirement.extras):
                if (name, required_extra) not in seen:
                    seen.add((name, required_extra))
                    distributions[name] = distribution(name)
                    follow(distributions[name], required_extra)

    follow(package, "")
    return list(distributions.values())


def sentences(count: int) -> Iterator[str]:
    for index in range(count):
        random_bytes = hashlib.sha256(str(index).encode()).digest()
        words = " ".join(WORDS[byte % len(WORDS)] for byte in random_bytes[:8])
        yield f"the {words}.\n" + ("\n" if index % 9 == 8 else "")  # nine sentences per document


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command and return its output. It inherits no path to the sources, no settings and no caches."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("PYTHON", "STEMMA_", "VIRTUAL_ENV", "SETUPTOOLS_SCM"))}
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "STEMMA_CACHE": str(cwd / "cache")}
    result = subprocess.run(command, cwd=cwd, env={**inherited, **offline, **environment}, capture_output=True,
                            text=True, timeout=300)
    if result.returncode:
        sys.exit(f"error: {' '.join(command)} ended with code {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def expect(condition: bool, problem: str) -> None:
    if not condition:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
