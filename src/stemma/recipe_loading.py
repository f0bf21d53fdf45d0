"""Loads recipes: inheritance from parents, sizes, command-line changes, validation, diff.

Pure data, no torch. A recipe has all its values resolved, defaults included, and a flat table with the origin of each
value. A child recipe, a size and command-line changes are all layers, merged on top of the previous values.
"""

from __future__ import annotations

import copy
import fnmatch
import logging
from collections.abc import Iterator, Mapping, Sequence
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
from stemma.schema.parts import BODY_KEYS
from stemma.schema.recipe import SECTIONS, RecipeSettings
from stemma.schema.recipe_checks import validate
from stemma.schema.renamed_keys import new_key, rename_keys, renaming_note

logger = logging.getLogger(__name__)
DEFAULT = "default"
COMMAND_LINE = "command line"
FIT_TO_TEXT = "tokenizer.fit_to_text"


class RecipeInfo(NamedTuple):
    """One line of `stemma tree`."""

    name: str
    parent: str | None
    year: int | None
    title: str
    summary: str
    file: str | None = None  # of a user's recipe

    def to_json(self) -> dict[str, Any]:
        """As JSON; `file` only if there is one."""
        return {key: value for key, value in self._asdict().items() if key != "file" or value is not None}


class RecipeChange(NamedTuple):
    """One key that differs between two recipes."""

    key: str
    before: Any  # None: absent
    after: Any


@dataclass(frozen=True, repr=False)
class Recipe:
    """A resolved recipe: plain values, the origin of each, and the same values as validated settings."""

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
        changes = sum(origin == COMMAND_LINE for origin in self.origin.values())
        parts = [title, f"child of {self.parent}" if self.parent else "",
                 pluralize(changes, "change") if changes else ""]
        return f"<Recipe {self.label}: {', '.join(filter(None, parts))}>"

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size}" if self.size else self.name

    def diff(self, other: str | Recipe) -> list[RecipeChange]:
        """The changes from `other` to this recipe."""
        return diff(other, self)

    def with_changes(self, changes: Mapping[str, object], origin: str) -> Recipe:
        """This recipe with some values replaced, by dotted keys or whole tables."""
        return self._with_layer(nest(changes), origin, [])

    def with_overrides(self, changes: Sequence[str] | Mapping[str, object]) -> Recipe:
        """This recipe with the `key=value` changes of a command line."""
        layer, problems = parse_changes(changes)
        tokenizer = layer.get("tokenizer")
        if isinstance(tokenizer, dict) and "vocab_size" in tokenizer and self.settings.tokenizer.fit_to_text:
            tokenizer.setdefault("fit_to_text", False)  # a size that the user states holds
        if not layer and not problems:
            return self
        changed = self._with_layer(layer, COMMAND_LINE, problems)
        if unused := list(_unused_changes(changed.settings, flatten(rename_keys(layer)[0]))):
            raise_problems(f"{self.label} with your changes", unused)
        return changed

    def unused_changes(self, changes: Sequence[str]) -> list[str]:
        """Those of the `key=value` changes that have no effect on this recipe."""
        flat = flatten(rename_keys(parse_changes(changes)[0])[0])
        kinds = {key: value for key, value in flat.items() if key in ("network.depth.kind", "training.method.kind")}
        try:
            settings = self.with_changes(kinds, COMMAND_LINE).settings if kinds else self.settings
        except UserError:  # reported where the changes are applied
            return []
        absent = [f"network.{key}" for key in BODY_KEYS if not settings.network.has_key(key)]
        unused = {problem.key for problem in _unused_changes(settings, flat)}
        unused |= {key for key in flat if any(f"{key}.".startswith(f"{table}.") for table in absent)}
        keys = {change: flatten(rename_keys(parse_changes([change])[0])[0]) for change in changes}
        return [change for change in changes if keys[change] and unused.issuperset(keys[change])]

    def _with_layer(self, layer: dict[str, Any], origin: str, problems: list[Problem]) -> Recipe:
        layer, old_keys = rename_keys(layer)
        if old_keys and origin == COMMAND_LINE:
            logger.info(renaming_note(old_keys, self.label))
        removed = layer.pop("remove", [])
        removed = [new_key(str(key)) for key in ([removed] if isinstance(removed, str) else removed)]
        values, origins, more = merge_layer(self.values, self.origin, layer, removed, origin)
        settings, found = validate(values, changed=flatten(layer).keys(), fallback=self.values)
        if settings is None or problems or more:
            whose = {COMMAND_LINE: " with your changes", self.label: ""}.get(origin, f" with what the {origin} brings")
            raise_problems(self.label + whose, [*problems, *more, *found])
        values = settings.model_dump(exclude_none=True)
        return replace(self, values=values, settings=settings, origin=_origins(values, origins))

    def to_toml(self, more: Sequence[registry.RegistryEntry] = ()) -> str:
        """The resolved recipe as a self-contained file; it records the plug-ins of its parts, and of `more`."""
        header = {"name": self.name, "size": self.size, "parent": self.parent, "title": self.title, "year": self.year,
                 "paper": self.paper, "summary": self.summary}
        stated = {key: origin for key, origin in self.origin.items() if origin != DEFAULT}
        used = plugins.plugins_of([*parts_in_settings(self.settings), *more])
        body = {key: value for key, value in header.items() if value is not None} | self.values
        body |= {"plugins": used} if used else {}
        body["origin"] = stated
        return f"# {self.label}: every value resolved, and below the origin of each (otherwise a default).\n" \
               + toml.dumps(body)


def recipe(name: str | Path, changes: Sequence[str] | Mapping[str, object] = (), size: str | None = None, *,
           stored: bool = False) -> Recipe:
    """Load "bert", "bert@tiny" or the path of a .toml file, with `key=value` changes on top. A file named by the user
    may list plug-ins, which are loaded. One `stored` in a run or model folder loads none; the user must have named
    those it was made with."""
    text = str(name)
    if not text.endswith(".toml"):
        text, _, stated = text.partition("@") if ".toml@" not in text else text.rpartition("@")
        size = size or stated or None
    chain = read_chain(Path(text) if text.endswith(".toml") else recipe_path(text), stored)
    file = chain[-1]
    if file.top.origin is not None:
        loaded = _load_stored(file, size)
    elif file.path.parent == recipe_files.RECIPES:
        key = tuple((file.path, file.text) for file in chain), size
        if key not in _package_recipes:
            _package_recipes[key] = _with_size(_resolve_chain(chain), chain, size)
        cached = _package_recipes[key]
        loaded = replace(cached, values=copy.deepcopy(cached.values), origin=dict(cached.origin))
    else:
        loaded = _with_size(_resolve_chain(chain), chain, size)
    return loaded.with_overrides(changes)


# Resolved recipes of the package, by the texts of their files and the size: resolving one takes several milliseconds.
_package_recipes: dict[tuple[tuple[tuple[Path, str], ...], str | None], Recipe] = {}


def recipe_names() -> list[str]:
    """The recipes that come with the package, oldest first."""
    return [info.name for info in list_recipes() if info.file is None]


def list_recipes() -> list[RecipeInfo]:
    """All recipes, oldest first: those of the package and the user's. Does not load their plug-ins."""
    files = [(read_file(path), None) for path in recipe_files.RECIPES.glob("*.toml")]
    user_files = [(file, str(path)) for path in user_recipe_files() if (file := read_file(path)).top.origin is None
                  and (file.top.parent is not None or file.sections.keys() & set(SECTIONS))]
    for _, path in user_files:
        check_name_is_free(Path(path))
    infos = [RecipeInfo(file.path.stem, _base_name(file.top.parent), file.top.year, file.top.title or file.path.stem,
                        file.top.summary or "", path) for file, path in [*files, *user_files]]
    return sorted(infos, key=lambda info: (info.year or 9999, info.name))


def _unused_changes(settings: RecipeSettings, changes: Mapping[str, Any]) -> Iterator[Problem]:
    """Changes that have no effect with the body, the training method or the objectives of the recipe."""
    for part in (settings.network.depth, settings.training.method_settings):
        for key, value in changes.items():
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in part.unused_keys):
                yield Problem(key, value, f"has no effect with {part.kind}; leave it out")
    if settings.objective and not any(objective.has_head_layer for objective in settings.objective.values()):
        for key, value in changes.items():
            if key.startswith("network.head."):
                yield Problem(key, value, "has no effect: no objective here has an LM head with a dense layer "
                                          "(transform); leave it out")


def _base_name(parent: str | None) -> str | None:
    return Path(parent).stem if parent is not None and parent.endswith(".toml") else parent


def required_special_tokens(recipe: Recipe) -> set[str]:
    """Roles of the special tokens that this recipe's tokenizer must have."""
    return recipe.settings.special_tokens()


def diff(a: str | Recipe, b: str | Recipe) -> list[RecipeChange]:
    """The changes from a to b: removed tables, then added keys, then changed values.

    Leaves out defaults that appear or disappear with a kind: nobody chose them.
    """
    a, b = (item if isinstance(item, Recipe) else recipe(item) for item in (a, b))
    before, after = flatten(a.values), flatten(b.values)
    missing = [key for key in before if key not in after and a.origin[key] != DEFAULT]
    added = [key for key in after if key not in before and b.origin[key] != DEFAULT]
    changed = [key for key in before if key in after and before[key] != after[key]]
    removed = dict.fromkeys(_highest_absent(key, b.values) for key in missing)
    return [*(RecipeChange(key, get_by_path(a.values, key), None) for key in removed),
            *(RecipeChange(key, None, after[key]) for key in added),
            *(RecipeChange(key, before[key], after[key]) for key in changed)]


def _highest_absent(key: str, values: Mapping[str, object]) -> str:
    """The outermost table of a key that these values do not have."""
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
        if file.path.parent == recipe_files.RECIPES:  # our own recipes must not restate values
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
    """The resolved recipe of a run."""
    top = file.top
    if size is not None and size != top.size:
        raise UserError(f"{file.path} is resolved at size {top.size}; give changes as key=value, not another size.")
    sections, origins = _with_finetuning(file)
    settings, problems = validate(sections)
    if settings is None or file.problems:
        raise_problems(str(file.path), [*file.problems, *problems], file.text)
    return _build_recipe(file, top.size, settings, origins, (top.size,) if top.size else ())


def _with_finetuning(file: LoadedRecipeFile) -> tuple[dict[str, Any], dict[str, str]]:
    """The sections of a run's recipe and their origins. Runs older than the section [finetuning], or than its key
    `style`, get it from the recipe they were made from, if that is one of ours."""
    sections, origins = file.sections, dict(file.top.origin or {})
    stated = sections.get("finetuning")
    if not (recipe_files.RECIPES / f"{file.name}.toml").is_file() or isinstance(stated, dict) and "style" in stated:
        return sections, origins
    if isinstance(stated, dict):
        return {**sections, "finetuning": {**stated, "style": recipe(file.name).settings.finetuning.style}}, origins
    ours = recipe(file.name)
    if file.top.size in ours.sizes:
        ours = recipe(file.name, size=file.top.size)
    more = {key: origin for key, origin in ours.origin.items() if key.startswith("finetuning.") and origin != DEFAULT}
    return {**sections, "finetuning": ours.values["finetuning"]}, origins | more


def _build_recipe(file: LoadedRecipeFile, size: str | None, settings: RecipeSettings, origins: Mapping[str, str],
                  sizes: tuple[str, ...]) -> Recipe:
    top, values = file.top, settings.model_dump(exclude_none=True)
    return Recipe(file.name, size, top.parent, top.title or file.name, top.year, top.paper, top.summary or "",
                  values, _origins(values, origins), settings, sizes)


# --- sizes -----------------------------------------------------------------------------------------------------------


def _sizes(chain: Sequence[LoadedRecipeFile]) -> tuple[str, ...]:
    """Published sizes of the recipe itself, then the laptop sizes of the recipe and its ancestors."""
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
    if not (recipe_files.RECIPES / f"{recipe.origin['tokenizer.vocab_size']}.toml").is_file():
        overlay.pop(FIT_TO_TEXT, None)  # a vocabulary size that a user's recipe states holds at every size
    recipe = replace(recipe, size=size)
    return recipe._with_layer(nest(overlay), recipe.label, [])


def _has_owner(settings: RecipeSettings, key: str) -> bool:
    """Whether the recipe still has the table of a size's key: an encoder has no decoder to shrink."""
    *tables, last = key.split(".")
    owner: Any = settings
    for table in tables:
        if isinstance(owner, Settings) and not owner.has_key(table):
            return False
        owner = owner.get(table) if isinstance(owner, dict) else getattr(owner, table)
    return isinstance(owner, Settings) and owner.has_key(last)
