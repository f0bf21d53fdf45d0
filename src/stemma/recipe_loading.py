"""A model is a recipe, and a recipe is what it changed from its parent: load, inherit, validate, explain, diff.

Pure data, no torch. Values are kept resolved at every generation, defaults included, beside a flat table that says
who set each of them. A child, a size and the changes of a command line are the same thing: a layer, merged on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from stemma import plugins, recipe_files, registry, toml
from stemma.errors import UserError, did_you_mean, pluralize
from stemma.recipe_files import (
    LoadedRecipeFile,
    check_name_is_free,
    raise_problems,
    read_chain,
    read_file,
    recipe_path,
    user_recipe_files,
)
from stemma.schema.base import Settings, parts_in_settings
from stemma.schema.overrides import Problem, find_restated, flatten, get_by_path, merge_layer, nest, parse_changes
from stemma.schema.recipe import SECTIONS, RecipeSettings
from stemma.schema.recipe_checks import validate

DEFAULT = "default"
COMMAND_LINE = "command line"


class RecipeInfo(NamedTuple):
    name: str
    parent: str | None
    year: int | None
    title: str
    summary: str
    file: str | None = None  # of a user's own recipe

    def to_json(self) -> dict[str, Any]:
        """For JSON; the file only where there is one."""
        return {key: value for key, value in self._asdict().items() if key != "file" or value is not None}


class RecipeChange(NamedTuple):
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
        parts = [title, f"child of {self.parent}" if self.parent else "", pluralize(typed, "change") if typed else ""]
        return f"<Recipe {self.label}: {', '.join(filter(None, parts))}>"

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size}" if self.size else self.name

    def diff(self, other: str | Recipe) -> list[RecipeChange]:
        """What changes on the way from `other` to this recipe."""
        return diff(other, self)

    def with_changes(self, changes: Mapping[str, object], origin: str) -> Recipe:
        """This recipe with some values replaced, by dotted keys or whole tables."""
        return self._with_layer(nest(changes), origin, [])

    def with_overrides(self, changes: Sequence[str] | Mapping[str, object]) -> Recipe:
        """This recipe with the `key=value` changes of a command line."""
        layer, problems = parse_changes(changes)
        return self._with_layer(layer, COMMAND_LINE, problems) if layer or problems else self

    def _with_layer(self, layer: dict[str, Any], origin: str, problems: list[Problem]) -> Recipe:
        removed = layer.pop("remove", [])
        removed = [removed] if isinstance(removed, str) else removed
        values, origins, more = merge_layer(self.values, self.origin, layer, removed, origin)
        settings, found = validate(values, changed=flatten(layer).keys(), fallback=self.values)
        if settings is None or problems or more:
            whose = {COMMAND_LINE: " with your changes", self.label: ""}.get(origin, f" with what the {origin} brings")
            raise_problems(self.label + whose, [*problems, *more, *found])
        values = settings.model_dump(exclude_none=True)
        return replace(self, values=values, settings=settings, origin=_origins(values, origins))

    def to_toml(self, more: Sequence[registry.RegistryEntry] = ()) -> str:
        """The resolved recipe as a file that runs again by itself; it notes the plug-ins of its parts, and of `more`.
        """
        about = {"name": self.name, "size": self.size, "parent": self.parent, "title": self.title, "year": self.year,
                 "paper": self.paper, "summary": self.summary}
        stated = {key: origin for key, origin in self.origin.items() if origin != DEFAULT}
        used = {"plugins": found} if (found := plugins.plugins_of([*parts_in_settings(self.settings), *more])) else {}
        body = {key: value for key, value in about.items() if value is not None} | self.values | used
        body["origin"] = stated
        return f"# {self.label} as it ran: every value resolved, and below who set it (otherwise a default).\n" \
               + toml.dumps(body)


def recipe(name: str | Path, changes: Sequence[str] | Mapping[str, object] = (), size: str | None = None, *,
           stored: bool = False) -> Recipe:
    """Load "bert", "bert@tiny" or the path of a .toml file, with `key=value` changes on top. A file that the user names
    may name plug-ins, which are loaded; one that is `stored` in a folder may not, and asks for those it was made with.
    """
    text = str(name)
    if not text.endswith(".toml"):
        text, _, stated = text.partition("@") if ".toml@" not in text else text.rpartition("@")
        size = size or stated or None
    chain = read_chain(Path(text) if text.endswith(".toml") else recipe_path(text), stored)
    file = chain[-1]
    found = _load_stored(file, size) if file.top.origin is not None else _with_size(_resolve_chain(chain), chain, size)
    return found.with_overrides(changes)


def recipe_names() -> list[str]:
    """The recipes that come with the package, oldest first."""
    return [info.name for info in list_recipes() if info.file is None]


def list_recipes() -> list[RecipeInfo]:
    """All recipes, oldest first: those of the package, and the user's own. Nothing is loaded that they may name."""
    files = [(read_file(path), None) for path in recipe_files.RECIPES.glob("*.toml")]
    own = [(file, str(path)) for path in user_recipe_files() if (file := read_file(path)).top.origin is None
           and (file.top.parent is not None or file.sections.keys() & set(SECTIONS))]
    for _, path in own:
        check_name_is_free(Path(path))
    known = [RecipeInfo(file.path.stem, _base_name(file.top.parent), file.top.year, file.top.title or file.path.stem,
                  file.top.summary or "", path) for file, path in [*files, *own]]
    return sorted(known, key=lambda info: (info.year or 9999, info.name))


def _base_name(parent: str | None) -> str | None:
    return Path(parent).stem if parent is not None and parent.endswith(".toml") else parent


def required_special_tokens(recipe: Recipe) -> set[str]:
    """The roles of special tokens that a tokenizer must have for this recipe."""
    return recipe.settings.special_tokens()


def diff(a: str | Recipe, b: str | Recipe) -> list[RecipeChange]:
    """What changes from a to b: tables that went, then what came, then what differs.

    Defaults that came or went with a kind are not told: whoever changed the kind did not choose them.
    """
    a, b = (one if isinstance(one, Recipe) else recipe(one) for one in (a, b))
    before, after = flatten(a.values), flatten(b.values)
    gone = [key for key in before if key not in after and a.origin[key] != DEFAULT]
    come = [key for key in after if key not in before and b.origin[key] != DEFAULT]
    differ = [key for key in before if key in after and before[key] != after[key]]
    removed = dict.fromkeys(_highest_absent(key, b.values) for key in gone)
    return [*(RecipeChange(key, get_by_path(a.values, key), None) for key in removed),
            *(RecipeChange(key, None, after[key]) for key in come),
            *(RecipeChange(key, before[key], after[key]) for key in differ)]


def _highest_absent(key: str, values: Mapping[str, object]) -> str:
    """The outermost table of a key that these values lack altogether."""
    parts = key.split(".")
    return next(path for n in range(1, len(parts) + 1) if get_by_path(values, path := ".".join(parts[:n])) is None)


# --- inheritance -----------------------------------------------------------------------------------------------------


def _resolve_chain(chain: Sequence[LoadedRecipeFile]) -> Recipe:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    settings: RecipeSettings | None = None
    for file in chain:
        before, layer = values, file.sections
        values, origins, problems = merge_layer(before, origins, layer, file.top.remove, file.name)
        if file.path.parent == recipe_files.RECIPES:  # a recipe of ours says only what is new
            problems += find_restated(before, layer)
        settings, found = validate(values, changed=flatten(layer).keys(), fallback=before)
        if settings is None or problems or file.problems:
            raise_problems(str(file.path), [*file.problems, *problems, *found], file.text)
        values = settings.model_dump(exclude_none=True)
        origins = _origins(values, origins)
    assert settings is not None
    return _build_recipe(chain[-1], None, settings, origins, _sizes(chain))


def _origins(values: Mapping[str, object], origins: Mapping[str, str]) -> dict[str, str]:
    return {key: origins.get(key, DEFAULT) for key in flatten(values)}


def _load_stored(file: LoadedRecipeFile, size: str | None) -> Recipe:
    """The recipe that a run wrote down."""
    top = file.top
    if size is not None and size != top.size:
        raise UserError(f"{file.path} is resolved at size {top.size}; give changes as key=value, not another size.")
    sections, origins = _with_finetuning(file)
    settings, problems = validate(sections)
    if settings is None or file.problems:
        raise_problems(str(file.path), [*file.problems, *problems], file.text)
    return _build_recipe(file, top.size, settings, origins, (top.size,) if top.size else ())


def _with_finetuning(file: LoadedRecipeFile) -> tuple[dict[str, Any], dict[str, str]]:
    """The sections of a run's recipe and who set them. A run from before there was a section [finetuning], or its key
    `style`, has that of the recipe it was made from, if that is one of ours."""
    sections, origins = file.sections, dict(file.top.origin or {})
    stated = sections.get("finetuning")
    if not (recipe_files.RECIPES / f"{file.name}.toml").is_file() or isinstance(stated, dict) and "style" in stated:
        return sections, origins
    if isinstance(stated, dict):
        return {**sections, "finetuning": {**stated, "style": recipe(file.name).settings.finetuning.style}}, origins
    ours = recipe(file.name)
    if file.top.size in ours.sizes:
        ours = recipe(file.name, size=file.top.size)
    told = {key: origin for key, origin in ours.origin.items() if key.startswith("finetuning.") and origin != DEFAULT}
    return {**sections, "finetuning": ours.values["finetuning"]}, origins | told


def _build_recipe(file: LoadedRecipeFile, size: str | None, settings: RecipeSettings, origins: Mapping[str, str],
            sizes: tuple[str, ...]) -> Recipe:
    top, values = file.top, settings.model_dump(exclude_none=True)
    return Recipe(file.name, size, top.parent, top.title or file.name, top.year, top.paper, top.summary or "",
                  values, _origins(values, origins), settings, sizes)


# --- sizes -----------------------------------------------------------------------------------------------------------


def _sizes(chain: Sequence[LoadedRecipeFile]) -> tuple[str, ...]:
    """Published sizes of the recipe itself, then the laptop sizes of the whole line."""
    laptop = dict.fromkeys(name for file in chain for name, overlay in file.top.sizes.items() if overlay.get("laptop"))
    return (*(name for name in chain[-1].top.sizes if name not in laptop), *laptop)


def _with_size(recipe: Recipe, chain: Sequence[LoadedRecipeFile], size: str | None) -> Recipe:
    laptop = {name for file in chain for name, overlay in file.top.sizes.items() if overlay.get("laptop")}
    if size is None:
        size = next((name for name in recipe.sizes if name not in laptop), None)
        if size is None:
            return recipe
    if size not in recipe.sizes:
        listed = f"it has {', '.join(recipe.sizes)}" if recipe.sizes else "it has none"
        raise UserError(f'no size "{size}" of {recipe.name}.{did_you_mean(size, recipe.sizes)} As sizes {listed}.')
    stated = chain if size in laptop else chain[-1:]
    overlay = {key: value for file in stated for key, value in flatten(file.top.sizes.get(size, {})).items()}
    overlay = {key: value for key, value in overlay.items() if key != "laptop" and
               (f"{key.rpartition('.')[0]}.kind" in overlay or _has_owner(recipe.settings, key))}
    recipe = replace(recipe, size=size)
    return recipe._with_layer(nest(overlay), recipe.label, [])


def _has_owner(settings: RecipeSettings, key: str) -> bool:
    """Whether the table that a size's key belongs to is still there: an encoder has no decoder to shrink."""
    *tables, last = key.split(".")
    owner: Any = settings
    for table in tables:
        if isinstance(owner, Settings) and not owner.has_key(table):
            return False
        owner = owner.get(table) if isinstance(owner, dict) else getattr(owner, table)
    return isinstance(owner, Settings) and owner.has_key(last)
