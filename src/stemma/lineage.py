"""A model is a recipe, and a recipe is what it changed from its parent: load, inherit, validate, explain, diff.

Pure data, no torch. Values are kept resolved at every generation, defaults included, beside a flat table that says
who set each of them. A child, a size and the changes of a command line are the same thing: a layer, merged on top.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from stemma import plugins, registry, toml
from stemma.errors import UserError, counted, did_you_mean
from stemma.schema.base import Settings, parts_of
from stemma.schema.layers import at, flatten, merged, nest, parse_changes, restated
from stemma.schema.problems import Problem, explain, validate
from stemma.schema.recipe import SECTIONS, RecipeFile, RecipeSettings
from stemma.schema.sizes import for_size, size_keys

RECIPES = Path(__file__).parent / "recipes"
OWN = "recipes"  # the folder of a user's own, in the working directory
_own: Path | None = None  # or the one that --recipes names
DEFAULT = "default"
COMMAND_LINE = "command line"


class Info(NamedTuple):
    name: str
    parent: str | None
    year: int | None
    title: str
    summary: str
    file: str | None = None  # of a user's own recipe

    def plain(self) -> dict[str, Any]:
        """For JSON; the file only where there is one."""
        return {key: value for key, value in self._asdict().items() if key != "file" or value is not None}


class Change(NamedTuple):
    key: str
    before: Any  # None: not there
    after: Any


@dataclass(frozen=True, repr=False)
class Recipe:
    """What can be built and run: plain values, who set each, and the same values as checked settings."""

    name: str
    size: str | None
    parent: str | None
    title: str
    year: int | None
    paper: str | None
    summary: str
    values: dict[str, Any]
    origin: dict[str, str]
    settings: RecipeSettings
    sizes: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        title = f"{self.title} ({self.year})" if self.year else self.title
        typed = sum(origin == COMMAND_LINE for origin in self.origin.values())
        parts = [title, f"child of {self.parent}" if self.parent else "", counted(typed, "change") if typed else ""]
        return f"<Recipe {self.label}: {', '.join(filter(None, parts))}>"

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size}" if self.size else self.name

    def diff(self, other: str | Recipe) -> list[Change]:
        """What changes on the way from `other` to this recipe."""
        return diff(other, self)

    def with_changes(self, changes: Mapping[str, Any], origin: str) -> Recipe:
        """This recipe with some values replaced, by dotted keys or whole tables."""
        return self._layered(nest(changes), origin, [])

    def typed(self, changes: Sequence[str] | Mapping[str, Any]) -> Recipe:
        """This recipe with the `key=value` changes of a command line."""
        layer, problems = parse_changes(changes)
        return self._layered(layer, COMMAND_LINE, problems) if layer or problems else self

    def _layered(self, layer: dict[str, Any], origin: str, problems: list[Problem]) -> Recipe:
        removed = layer.pop("remove", [])
        removed = [removed] if isinstance(removed, str) else removed
        values, origins, more = merged(self.values, self.origin, layer, removed, origin)
        settings, found = validate(values, changed=flatten(layer).keys(), fallback=self.values)
        if settings is None or problems or more:
            whose = {COMMAND_LINE: " with your changes", self.label: ""}.get(origin, f" with what the {origin} brings")
            _refuse(self.label + whose, [*problems, *more, *found])
        values = settings.model_dump(exclude_none=True)
        return replace(self, values=values, settings=settings, origin=_origins(values, origins))

    def to_toml(self, more: Sequence[registry.Registered] = ()) -> str:
        """The resolved recipe as a file that runs again by itself; it notes the plug-ins of its parts, and of `more`.
        """
        about = {"name": self.name, "size": self.size, "parent": self.parent, "title": self.title, "year": self.year,
                 "paper": self.paper, "summary": self.summary}
        stated = {key: origin for key, origin in self.origin.items() if origin != DEFAULT}
        used = {"plugins": found} if (found := plugins.used_by([*parts_of(self.settings), *more])) else {}
        body = {key: value for key, value in about.items() if value is not None} | self.values | used
        body["origin"] = stated
        return f"# {self.label} as it ran: every value resolved, and below who set it (otherwise a default).\n" \
               + toml.dumps(body)


def recipe(name: str | Path, changes: Sequence[str] | Mapping[str, Any] = (), size: str | None = None, *,
           stored: bool = False) -> Recipe:
    """Load "bert", "bert@tiny" or the path of a .toml file, with `key=value` changes on top. A file that the user names
    may name plug-ins, which are loaded; one that is `stored` in a folder may not, and asks for those it was made with.
    """
    text = str(name)
    if not text.endswith(".toml"):
        text, _, stated = text.partition("@") if ".toml@" not in text else text.rpartition("@")
        size = size or stated or None
    chain = _chain(Path(text) if text.endswith(".toml") else _named(text), stored)
    file = chain[-1]
    found = _resolved(file, size) if file.top.origin is not None else _sized(_inherited(chain), chain, size)
    return found.typed(changes)


def names() -> list[str]:
    """The recipes that come with the package, oldest first."""
    return [info.name for info in family() if info.file is None]


def family() -> list[Info]:
    """All recipes, oldest first: those of the package, and the user's own. Nothing is loaded that they may name."""
    files = [(_read(path), None) for path in RECIPES.glob("*.toml")]
    own = [(file, str(path)) for path in own_recipes() if (file := _read(path)).top.origin is None
           and (file.top.parent is not None or file.sections.keys() & set(SECTIONS))]
    for _, path in own:
        _refuse_taken(Path(path))
    known = [Info(file.path.stem, _stem(file.top.parent), file.top.year, file.top.title or file.path.stem,
                  file.top.summary or "", path) for file, path in [*files, *own]]
    return sorted(known, key=lambda info: (info.year or 9999, info.name))


@contextmanager
def own_folder(folder: str | Path | None) -> Iterator[None]:
    """Where the user's own recipes are looked for meanwhile; None: in `recipes/` of the working directory."""
    global _own
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder} of recipes; give --recipes a folder with .toml files.")
    before, _own = _own, None if folder is None else Path(folder)
    try:
        yield
    finally:
        _own = before


def own_recipes() -> list[Path]:
    """The files of the user's own recipes."""
    folder = Path(OWN) if _own is None else _own
    return [] if not folder.is_dir() or folder.resolve() == RECIPES.resolve() else sorted(folder.glob("*.toml"))


def _stem(parent: str | None) -> str | None:
    return Path(parent).stem if parent is not None and parent.endswith(".toml") else parent


def _refuse_taken(path: Path) -> None:
    if (RECIPES / path.name).is_file():
        raise UserError(f'{path} has the name of a recipe that comes with Stemma, and "{path.stem}" must mean one '
                        "recipe; rename the file (it can still have that one as its parent).")


def roles_needed(recipe: Recipe) -> set[str]:
    """The roles of special tokens that a tokenizer must have for this recipe."""
    return recipe.settings.roles()


def diff(a: str | Recipe, b: str | Recipe) -> list[Change]:
    """What changes from a to b: tables that went, then what came, then what differs.

    Defaults that came or went with a kind are not told: whoever changed the kind did not choose them.
    """
    a, b = (one if isinstance(one, Recipe) else recipe(one) for one in (a, b))
    before, after = flatten(a.values), flatten(b.values)
    gone = [key for key in before if key not in after and a.origin[key] != DEFAULT]
    come = [key for key in after if key not in before and b.origin[key] != DEFAULT]
    differ = [key for key in before if key in after and before[key] != after[key]]
    removed = dict.fromkeys(_highest_absent(key, b.values) for key in gone)
    return [*(Change(key, at(a.values, key), None) for key in removed),
            *(Change(key, None, after[key]) for key in come),
            *(Change(key, before[key], after[key]) for key in differ)]


def _highest_absent(key: str, values: Mapping[str, Any]) -> str:
    """The outermost table of a key that these values lack altogether."""
    parts = key.split(".")
    return next(path for n in range(1, len(parts) + 1) if at(values, path := ".".join(parts[:n])) is None)


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    path: Path
    text: str
    top: RecipeFile
    sections: dict[str, Any]
    problems: list[Problem]  # of the top and the sizes; told together with those of the sections

    @property
    def name(self) -> str:
        return self.top.name or self.path.stem


def _named(name: str) -> Path:
    """The file of a recipe's name: one of ours, or the user's."""
    own = {path.stem: path for path in own_recipes()}
    if name in own:
        _refuse_taken(own[name])
        return own[name]
    known = [file.stem for file in RECIPES.glob("*.toml")]
    if name not in known:
        raise UserError(f'no recipe "{name}".{did_you_mean(name, [*known, *own])} `stemma tree` lists all of them.')
    return RECIPES / f"{name}.toml"


def _read(path: Path, stored: bool | None = None) -> _File:
    """One file; `stored` None only looks at it, and what it needs is neither loaded nor asked for."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    # a table that is none of the top's is a section, perhaps a misspelt one: it is checked with the others
    about = {key: value for key, value in content.items()
             if key in RecipeFile.model_fields or not (key in SECTIONS or isinstance(value, dict))}
    problems: list[Problem] = []
    try:
        top = RecipeFile.model_validate(about)
    except ValidationError as error:
        problems = list(explain(error, about, RecipeFile))
        wrong = {found["loc"][0] for found in error.errors()}
        top = RecipeFile.model_validate({key: value for key, value in about.items() if key not in wrong})
    if stored is not None and top.plugins:
        _plug_in(path, top, stored)
    problems += [Problem(f"sizes.{size}.{key}", value, f"is not for a size to set.{did_you_mean(key, size_keys())}")
                 for size, overlay in top.sizes.items() for key, value in flatten(overlay).items()
                 if not for_size(key, overlay.get("laptop") is True) and not (key == "laptop" and
                                                                              isinstance(value, bool))]
    sections = {key: value for key, value in content.items() if key not in about}
    return _File(path, text, top, sections, problems)


def _plug_in(path: Path, top: RecipeFile, stored: bool) -> None:
    """Load what a recipe names, or ask for it: a folder that a run or a model left, perhaps on another machine, never
    makes us load code."""
    within = [path.parent / file for file in ("run.json", "config.json")]
    if isinstance(top.plugins, list) and not stored and top.origin is None and not any(map(Path.is_file, within)):
        for name in top.plugins:
            plugins.use_plugin(path.parent / name)
        return
    noted = top.plugins if isinstance(top.plugins, dict) else {Path(name).name: "" for name in top.plugins}
    plugins.demand(noted, path.parent if any(map(Path.is_file, within)) else path, exact=stored)


def _chain(path: Path, stored: bool = False) -> list[_File]:
    """A recipe's file and its ancestors', the oldest first."""
    chain: list[_File] = []
    while True:
        file = _read(path, stored)
        chain.insert(0, file)
        parent = file.top.parent
        if parent is None or file.top.origin is not None:
            return chain
        where = f"{path}, line {toml.line_of(file.text, 'parent')}"
        if parent.endswith(".toml"):
            path = path.parent / parent
            if not path.is_file():
                raise UserError(f"{where}: no recipe file {path} to be the parent.")
        else:
            try:
                path = _named(parent)
            except UserError as error:
                raise UserError(f"{where}: {error.message}") from error
        if any(path.resolve() == known.path.resolve() for known in chain):
            line = " -> ".join([known.name for known in chain] + [chain[0].name])
            raise UserError(f"{where}: a recipe cannot be its own ancestor ({line}).")


def _refuse(where: str, problems: Sequence[Problem], text: str = "") -> NoReturn:
    def place(problem: Problem) -> str:
        line = toml.line_of(text, problem.key)
        return f"line {line}: {problem.place}" if line else problem.place

    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    raise UserError(f"{count} in {where}", [(place(problem), problem.message) for problem in problems])


# --- inheritance -----------------------------------------------------------------------------------------------------


def _inherited(chain: Sequence[_File]) -> Recipe:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    settings: RecipeSettings | None = None
    for file in chain:
        before, layer = values, file.sections
        values, origins, problems = merged(before, origins, layer, file.top.remove, file.name)
        if file.path.parent == RECIPES:  # a recipe of ours says only what is new
            problems += restated(before, layer)
        settings, found = validate(values, changed=flatten(layer).keys(), fallback=before)
        if settings is None or problems or file.problems:
            _refuse(str(file.path), [*file.problems, *problems, *found], file.text)
        values = settings.model_dump(exclude_none=True)
        origins = _origins(values, origins)
    assert settings is not None
    return _recipe(chain[-1], None, settings, origins, _sizes(chain))


def _origins(values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, str]:
    return {key: origins.get(key, DEFAULT) for key in flatten(values)}


def _resolved(file: _File, size: str | None) -> Recipe:
    """The recipe that a run wrote down."""
    top = file.top
    if size is not None and size != top.size:
        raise UserError(f"{file.path} is resolved at size {top.size}; give changes as key=value, not another size.")
    sections, origins = _with_finetuning(file)
    settings, problems = validate(sections)
    if settings is None or file.problems:
        _refuse(str(file.path), [*file.problems, *problems], file.text)
    return _recipe(file, top.size, settings, origins, (top.size,) if top.size else ())


def _with_finetuning(file: _File) -> tuple[dict[str, Any], dict[str, str]]:
    """The sections of a run's recipe and who set them. A run from before there was a section [finetuning], or its key
    `style`, has that of the recipe it was made from, if that is one of ours."""
    sections, origins = file.sections, dict(file.top.origin or {})
    stated = sections.get("finetuning")
    if not (RECIPES / f"{file.name}.toml").is_file() or isinstance(stated, dict) and "style" in stated:
        return sections, origins
    if isinstance(stated, dict):
        return {**sections, "finetuning": {**stated, "style": recipe(file.name).settings.finetuning.style}}, origins
    ours = recipe(file.name)
    if file.top.size in ours.sizes:
        ours = recipe(file.name, size=file.top.size)
    told = {key: origin for key, origin in ours.origin.items() if key.startswith("finetuning.") and origin != DEFAULT}
    return {**sections, "finetuning": ours.values["finetuning"]}, origins | told


def _recipe(file: _File, size: str | None, settings: RecipeSettings, origins: Mapping[str, str],
            sizes: tuple[str, ...]) -> Recipe:
    top, values = file.top, settings.model_dump(exclude_none=True)
    return Recipe(file.name, size, top.parent, top.title or file.name, top.year, top.paper, top.summary or "",
                  values, _origins(values, origins), settings, sizes)


# --- sizes -----------------------------------------------------------------------------------------------------------


def _sizes(chain: Sequence[_File]) -> tuple[str, ...]:
    """Published sizes of the recipe itself, then the laptop sizes of the whole line."""
    laptop = dict.fromkeys(name for file in chain for name, overlay in file.top.sizes.items() if overlay.get("laptop"))
    return (*(name for name in chain[-1].top.sizes if name not in laptop), *laptop)


def _sized(found: Recipe, chain: Sequence[_File], size: str | None) -> Recipe:
    laptop = {name for file in chain for name, overlay in file.top.sizes.items() if overlay.get("laptop")}
    if size is None:
        size = next((name for name in found.sizes if name not in laptop), None)
        if size is None:
            return found
    if size not in found.sizes:
        listed = f"it has {', '.join(found.sizes)}" if found.sizes else "it has none"
        raise UserError(f'no size "{size}" of {found.name}.{did_you_mean(size, found.sizes)} As sizes {listed}.')
    stated = chain if size in laptop else chain[-1:]
    overlay = {key: value for file in stated for key, value in flatten(file.top.sizes.get(size, {})).items()}
    overlay = {key: value for key, value in overlay.items() if key != "laptop" and
               (f"{key.rpartition('.')[0]}.kind" in overlay or _has_owner(found.settings, key))}
    found = replace(found, size=size)
    return found._layered(nest(overlay), found.label, [])


def _has_owner(settings: RecipeSettings, key: str) -> bool:
    """Whether the table that a size's key belongs to is still there: an encoder has no decoder to shrink."""
    *tables, last = key.split(".")
    owner: Any = settings
    for table in tables:
        if isinstance(owner, Settings) and not owner.has(table):
            return False
        owner = owner.get(table) if isinstance(owner, dict) else getattr(owner, table)
    return isinstance(owner, Settings) and owner.has(last)
