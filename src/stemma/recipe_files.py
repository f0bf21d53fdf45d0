"""Finds and reads recipe files, and reports their problems by line.

Looks in the package first, then in the user's folder. Reads a file with its ancestors, oldest first, as layers for
`recipe_loading.py`.
"""

from __future__ import annotations

import functools
import logging
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from stemma import plugins, toml
from stemma.errors import UserError, did_you_mean
from stemma.schema.overrides import Problem, flatten, nest
from stemma.schema.recipe import SECTIONS, RecipeFile
from stemma.schema.recipe_checks import explain
from stemma.schema.renamed_keys import new_key, rename_keys, renaming_note
from stemma.schema.size_keys import is_size_key, size_keys

logger = logging.getLogger(__name__)
RECIPES = Path(__file__).parent / "recipes"
USER_FOLDER = "recipes"  # default folder of the user's recipes, in the working directory
_user_folder: Path | None = None  # the folder from --recipes


@dataclass(frozen=True)
class LoadedRecipeFile:
    """A parsed recipe file; its sections are validated after inheritance."""

    path: Path
    text: str
    top: RecipeFile
    sections: dict[str, Any]
    problems: list[Problem]  # of the top-level keys and the sizes; reported together with those of the sections

    @property
    def name(self) -> str:
        return self.top.name or self.path.stem


def recipe_path(name: str) -> Path:
    """The file of a recipe name, from the package or from the user's folder."""
    user_files = {path.stem: path for path in user_recipe_files()}
    if name in user_files:
        check_name_is_free(user_files[name])
        return user_files[name]
    if not name or Path(name).name != name or not (RECIPES / f"{name}.toml").is_file():
        names = [file.stem for file in RECIPES.glob("*.toml")]
        raise UserError(f'no recipe "{name}".{did_you_mean(name, [*names, *user_files])} `stemma tree` lists all of '
                        "them.")
    return RECIPES / f"{name}.toml"


def read_file(path: Path, stored: bool | None = None) -> LoadedRecipeFile:
    """Read one file. With `stored` None its plug-ins are neither loaded nor required."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.parent == RECIPES:
            return _parse_package_file(path, text)
        return _parse(path, text, stored)
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error


@functools.lru_cache(maxsize=256)
def _parse_package_file(path: Path, text: str) -> LoadedRecipeFile:
    """A recipe of the package, parsed once: loading a model asks for its recipe and parents several times. They list
    no plug-ins."""
    return _parse(path, text, None)


def _parse(path: Path, text: str, stored: bool | None) -> LoadedRecipeFile:
    content, old_keys = rename_keys(tomllib.loads(text))
    # An unknown table is a section, possibly misspelt: it is validated with the other sections.
    header = {key: value for key, value in content.items()
              if key in RecipeFile.model_fields or not (key in SECTIONS or isinstance(value, dict))}
    problems: list[Problem] = []
    try:
        top = RecipeFile.model_validate(header)
    except ValidationError as error:
        problems = list(explain(error, header, RecipeFile))
        invalid = {details["loc"][0] for details in error.errors()}
        top = RecipeFile.model_validate({key: value for key, value in header.items() if key not in invalid})
    top, more_old_keys = _rename_in_header(top)
    if (old_keys or more_old_keys) and stored is not None and top.origin is None:  # not in a list, nor of a run
        logger.info(renaming_note([*old_keys, *more_old_keys], str(path)))
    if stored is not None and top.plugins:
        _load_plugins(path, top, stored)
    problems += [Problem(f"sizes.{size}.{key}", value, f"is not for a size to set.{did_you_mean(key, size_keys())}")
                 for size, overlay in top.sizes.items() for key, value in flatten(overlay).items()
                 if not is_size_key(key, overlay.get("laptop") is True)
                 and not (key == "laptop" and isinstance(value, bool))]
    sections = {key: value for key, value in content.items() if key not in header}
    return LoadedRecipeFile(path, text, top, sections, problems)


def _rename_in_header(top: RecipeFile) -> tuple[RecipeFile, list[str]]:
    """Present names of keys in `sizes`, `remove` and `origin`; and the old ones of the first two."""
    sizes = {name: rename_keys(nest(overlay)) for name, overlay in top.sizes.items()}
    old_keys = [key for _, keys in sizes.values() for key in keys] + [key for key in top.remove if new_key(key) != key]
    origin = None if top.origin is None else {new_key(key): name for key, name in top.origin.items()}
    return top.model_copy(update={"sizes": {name: overlay for name, (overlay, _) in sizes.items()}, "origin": origin,
                                  "remove": [new_key(key) for key in top.remove]}), old_keys


def _load_plugins(path: Path, top: RecipeFile, stored: bool) -> None:
    """Load the plug-ins that a recipe lists, or require that the user has named them: a run or model folder, which may
    come from another machine, must never cause code to be loaded."""
    within = [path.parent / file for file in ("run.json", "config.json")]
    if isinstance(top.plugins, list) and not stored and top.origin is None and not any(map(Path.is_file, within)):
        for name in top.plugins:
            plugins.use_plugin(path.parent / name)
        return
    recorded = top.plugins if isinstance(top.plugins, dict) else {Path(name).name: "" for name in top.plugins}
    plugins.require_plugins(recorded, path.parent if any(map(Path.is_file, within)) else path, exact=stored)


def read_chain(path: Path, stored: bool = False) -> list[LoadedRecipeFile]:
    """A recipe file and its ancestors, the oldest first."""
    chain: list[LoadedRecipeFile] = []
    while True:
        file = read_file(path, stored)
        chain.insert(0, file)
        parent = file.top.parent
        if parent is None or file.top.origin is not None:
            return chain
        where = f"{path}, line {toml.line_of(file.text, 'parent')}"
        if parent.endswith(".toml"):
            path = path.parent / parent
            if not path.is_file():
                raise UserError(f"{where}: no recipe file {path} to be the parent.")
        elif "@" in parent:
            raise UserError(f'{where}: a parent has no size; write "{parent.partition("@")[0]}".')
        else:
            try:
                path = recipe_path(parent)
            except UserError as error:
                raise UserError(f"{where}: {error.message}") from error
        if any(path.resolve() == ancestor.path.resolve() for ancestor in chain):
            line = " -> ".join([ancestor.name for ancestor in chain] + [chain[0].name])
            raise UserError(f"{where}: a recipe cannot be its own ancestor ({line}).")


def raise_problems(subject: str, problems: Sequence[Problem], text: str = "") -> NoReturn:
    def location(problem: Problem) -> str:
        line = toml.line_of(text, problem.key)
        return f"line {line}: {problem.location}" if line else problem.location

    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    raise UserError(f"{count} in {subject}", [(location(problem), problem.message) for problem in problems])


@contextmanager
def user_recipe_folder(folder: str | Path | None) -> Iterator[None]:
    """Use this folder for the user's recipes inside the block; None: `recipes/` in the working directory."""
    global _user_folder
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder} of recipes; give --recipes a folder with .toml files.")
    before, _user_folder = _user_folder, None if folder is None else Path(folder)
    try:
        yield
    finally:
        _user_folder = before


def user_recipe_files() -> list[Path]:
    """The user's recipe files."""
    folder = Path(USER_FOLDER) if _user_folder is None else _user_folder
    return [] if not folder.is_dir() or folder.resolve() == RECIPES.resolve() else sorted(folder.glob("*.toml"))


def check_name_is_free(path: Path) -> None:
    if (RECIPES / path.name).is_file():
        raise UserError(f'{path} has the name of a recipe that comes with Stemma, and "{path.stem}" must mean one '
                        "recipe; rename the file (it can still have that one as its parent).")
