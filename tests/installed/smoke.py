"""Does what was built work where the repository is not? `make test-dist` runs this on the wheel and the sdist in dist/.

Each is installed into an environment of its own, outside of the repository. To be quick, and to need no network, the
environment borrows what the wheel requires from the one that runs this, by links: the declared requirements and theirs,
nothing else. So a file, an entry point or a requirement that the wheel forgets to state is missed here too.
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
    with tempfile.TemporaryDirectory(prefix="stemma-dist-") as place:
        away = Path(place)
        if away.resolve().is_relative_to(ROOT):
            sys.exit(f"error: temporary files lie inside of the repository ({away}); set TMPDIR to a folder elsewhere.")
        complete(wheel, sdist)
        with ThreadPoolExecutor() as side_by_side:
            tried = {wheel.name: side_by_side.submit(smoke, wheel, away / "wheel"),
                     sdist.name: side_by_side.submit(lambda: smoke(rebuilt(sdist, away / "rebuilt"), away / "sdist"))}
        for name, told in tried.items():
            print(name, *told.result(), sep="\n  ")
    print(f"both work; {time.perf_counter() - begun:.0f} s")


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"error: {folder} holds {len(found)} files {pattern}, and one is tested; `make dist` builds it.")
    return found[0]


def complete(wheel: Path, sdist: Path) -> None:
    """Everything that git knows is in the sdist, and everything of the package in the wheel. Without git, the sdist is
    compared with the wheel alone."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    tracked = {name for name in told.stdout.split("\0") if name and (ROOT / name).exists()}
    if told.returncode or not tracked:
        tracked = {f"src/{name}" for name in in_wheel}
    wanted = {name.removeprefix("src/") for name in tracked if name.startswith(f"src/{PACKAGE}/")}
    problems = [f"the sdist lacks {name}" for name in sorted(tracked - in_sdist)]
    problems += [f"the wheel lacks {name}" for name in sorted(wanted - in_wheel)]
    problems += [f"the wheel has {name}, which git does not know (add it, or delete it)"
                 for name in sorted(in_wheel - wanted)]
    if problems:
        sys.exit("\n  ".join([f"error: {len(problems)} wrong in the contents of {wheel.parent}", *problems]))
    print(f"contents: {len(in_wheel)} files in the wheel, {len(in_sdist)} in the sdist")


def rebuilt(sdist: Path, out: Path) -> Path:
    """The wheel that pip makes of the sdist, where there is no git."""
    out.mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--wheel-dir", ".", str(sdist), cwd=out)
    return only(out, "*.whl")


def smoke(wheel: Path, place: Path) -> list[str]:
    """What was run, and how long it took."""
    environment, empty = place / "environment", place / "empty"
    empty.mkdir(parents=True)
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=empty)
    borrow(wheel, environment)
    run(*pip, "check", cwd=empty)

    told: list[str] = []
    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def stemma(*arguments: str) -> str:
        begun = time.perf_counter()
        said = run(str(environment / "bin" / "stemma"), *arguments, cwd=empty, PATH=path)
        told.append(f"{time.perf_counter() - begun:5.1f} s  stemma {' '.join(arguments)}")
        return said

    version = run(str(python), "-c", HOME_CHECK.format(root=str(ROOT)), cwd=empty).strip()
    expect(f"-{version}-" in wheel.name, f"stemma.__version__ is {version} and the wheel is {wheel.name}")
    expect(stemma("--version").startswith(f"stemma {version} "), "`stemma --version` tells another version")
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
    expect(stemma("fill", "run", "the old [MASK] reads a letter").strip() != "", "`stemma fill` says nothing")
    return told


def borrow(wheel: Path, environment: Path) -> None:
    """Links to the installed files of all that the wheel requires, in a folder that the environment has on its path."""
    shelf = environment / "borrowed"
    shelf.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        about = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")).partition("/")[0]
        needed = required(PathDistribution(zipfile.Path(archive, f"{about}/")))
    for one in needed:
        for entry in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            source, link = Path(str(one.locate_file(entry))), shelf / entry
            if source.suffix != ".pth" and source.exists() and not link.exists():
                link.symlink_to(source)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "borrowed.pth").write_text(f"{shelf}\n")


def required(package: Distribution) -> list[Distribution]:
    """What a package requires without its extras, and what that requires."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def follow(one: Distribution, extra: str) -> None:
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            for wanted in ("", *requirement.extras):
                if (name, wanted) not in seen:
                    seen.add((name, wanted))
                    found[name] = distribution(name)
                    follow(found[name], wanted)

    follow(package, "")
    return list(found.values())


def sentences(count: int) -> Iterator[str]:
    for number in range(count):
        drawn = hashlib.sha256(str(number).encode()).digest()
        words = " ".join(WORDS[byte % len(WORDS)] for byte in drawn[:8])
        yield f"the {words}.\n" + ("\n" if number % 9 == 8 else "")  # nine sentences a document


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What it prints. It inherits no path to our sources, no settings of Python, and nobody's caches."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "STEMMA_", "VIRTUAL_ENV", "SETUPTOOLS_SCM"))}
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "STEMMA_CACHE": str(cwd / "cache")}
    told = subprocess.run(command, cwd=cwd, env={**kept, **offline, **environment}, capture_output=True, text=True,
                          timeout=300)
    if told.returncode:
        sys.exit(f"error: {' '.join(command)} ended with code {told.returncode}\n{told.stdout}{told.stderr}")
    return told.stdout


def expect(right: bool, problem: str) -> None:
    if not right:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
