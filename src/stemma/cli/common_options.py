"""Options that every verb has; and the option groups of `options.py`, expanded into single options for typer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from stemma.cli.output import DebugOption, DeviceOption

PluginOption = Annotated[list[str] | None, typer.Option("--plugin", metavar="FILE.py", show_default=False, help="Load "
                                                        "this plug-in, a Python file that registers parts (may be "
                                                        "repeated).")]
RecipesOption = Annotated[str | None, typer.Option("--recipes", metavar="DIR", show_default=False, help="Folder of "
                                                   "your recipes, found by name; by default recipes/.")]
OPTIONS = {"plugin": PluginOption, "own_recipes": RecipesOption}  # `recipes` is an argument of `compare`

# The panels of `stemma --help`, in this order.
TEXT, TRAIN, USE, TASKS, LAB = PANELS = "Text", "Train", "Use", "Tasks", "Lab"


_computing: set[Callable[..., Any]] = set()
Verb = TypeVar("Verb", bound=Callable[..., Any])


def computes(verb: Verb) -> Verb:
    """Mark a verb that computes: it gets `--device`, which applies to the whole verb."""
    _computing.add(verb)
    return verb


def add_common_options(app: typer.Typer) -> None:
    """Add the options to every verb of the app and of its groups."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_common_options(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_common_options(group.typer_instance)


def _with_common_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with its option groups expanded, and with the common options around the last option, `--json`."""
    hints = get_type_hints(verb, include_extras=True)  # typer cannot resolve string annotations of the new signature
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name in groups:
            parameters += _expand(groups[parameter.name])
        else:
            parameters.append(_option(parameter.name, hints[parameter.name], parameter.default))
    json_index = next((index for index, parameter in enumerate(parameters) if parameter.name == "json"),
                      len(parameters))
    added = {**({"device": DeviceOption} if verb in _computing else {}), **OPTIONS}
    parameters[json_index:json_index] = [_option(name, kind, None) for name, kind in added.items()]
    parameters.append(_option("debug", DebugOption, False))

    @functools.wraps(verb)
    def extended(*, plugin: list[str] | None = None, own_recipes: str | None = None, **arguments: Any) -> Any:
        for name in ("device", "debug"):  # --device has its own callback; `main` handles --debug
            arguments.pop(name, None)
        if plugin:
            from stemma.plugins import use_plugin

            for path in plugin:
                use_plugin(path)
        for name, kind in groups.items():
            arguments[name] = kind(**{field.name: arguments.pop(field.name) for field in fields(kind)})
        if own_recipes is None:
            return verb(**arguments)
        from stemma.recipe_files import user_recipe_folder

        with user_recipe_folder(own_recipes):
            return verb(**arguments)

    extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return extended


def _expand(group: Any) -> list[inspect.Parameter]:
    """An option for each field of a group."""
    hints = get_type_hints(group, include_extras=True)
    return [_option(field.name, hints[field.name],
                    inspect.Parameter.empty if field.default is MISSING else field.default) for field in fields(group)]


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
