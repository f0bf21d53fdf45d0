"""Plug-ins: files of the user's own code, each of which registers parts (`registry.py`).

A plug-in is code, so it is loaded only where the user names it: with `--plugin FILE.py`, with `stemma.use_plugin`, or
in a recipe file that the user names. What a run or a model used is written into its recipe by name and SHA-256; reading
such a folder loads nothing, but asks for the plug-in and compares it.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stemma import registry
from stemma.errors import UserError

PACKAGE_PREFIX = "package "  # before the version of an installed package, where a file has its SHA-256


@dataclass(frozen=True)
class Plugin:
    path: Path
    sha256: str
    module: str  # the name under which its parts are registered

    @property
    def name(self) -> str:
        return self.path.name


_loaded: dict[str, Plugin] = {}  # by file name
_lock = threading.RLock()


def use_plugin(path: str | Path) -> Plugin:
    """Load a plug-in, so that its parts can be named by recipes. One that changed since is loaded again."""
    file = Path(path)
    try:
        code = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the plug-in {file}: {error.strerror or error}; give the path of a Python file."
                        ) from error
    digest = hashlib.sha256(code).hexdigest()
    with _lock:
        before = _loaded.get(file.name)
        if before is not None and before.sha256 == digest:
            return before
        if before is not None and before.path != file.resolve():
            raise UserError(f"{file} and {before.path} are two plug-ins of one name, by which a run remembers them; "
                            "rename one of the files.")
        found = Plugin(file.resolve(), digest, f"stemma_plugin_{file.stem}")
        kept = registry.unregister(found.module)
        try:
            _run(file, code, found)
        except BaseException:
            registry.unregister(found.module)
            registry.restore(kept)
            raise
        _loaded[file.name] = found
        return found


def _run(file: Path, code: bytes, plugin: Plugin) -> None:
    """Execute the file as a module of its own; whatever goes wrong is told with its line."""
    module = ModuleType(plugin.module)
    module.__file__ = str(plugin.path)
    sys.modules[plugin.module] = module  # settings look up their types there
    try:
        exec(compile(code, str(plugin.path), "exec"), module.__dict__)
    except SyntaxError as error:
        where = file if error.filename == str(plugin.path) else error.filename
        raise UserError(f"the plug-in {where}, line {error.lineno}: {error.msg}; mend it and run again.") from error
    except UserError as error:
        raise UserError(f"the plug-in {file}, line {_line(error, plugin)}: {error.message}", error.problems) from error
    except (Exception, SystemExit) as error:
        raise UserError(f"the plug-in {file}, line {_line(error, plugin)}: {_error_text(error)}; mend it and run again."
                        ) from error
    if not registry.entries_of_module(plugin.module):
        raise UserError(f"the plug-in {file} registers nothing; put @register(SLOT, KIND, SETTINGS) over a class or a "
                        f"function of its own, where SLOT is one of {', '.join(registry.BUILT_IN)}.")


def _line(error: BaseException, plugin: Plugin) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(plugin.path)]
    return lines[-1] if lines else None


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def plugin_error(error: BaseException) -> UserError | None:
    """An error that a plug-in's code raised, or had raised by what it called, with the line; None: it is no plug-in's.
    """
    for plugin in _loaded.values():
        line = _line(error, plugin)
        if line is not None:
            return UserError(f"the plug-in {plugin.path}, line {line}: {_error_text(error)}; mend it and run again (--debug "
                             "shows the traceback).")
    return None


def command_line_options() -> list[str]:
    """The plug-ins that are loaded, as the command line of another process names them."""
    return [word for plugin in _loaded.values() for word in ("--plugin", str(plugin.path))]


def plugins_of(parts: Iterable[registry.RegistryEntry]) -> dict[str, str]:
    """What a folder notes of the plug-ins that these parts come from: SHA-256 by file name, or a package's version."""
    modules = {part.module for part in parts}
    files = {plugin.name: plugin.sha256 for plugin in _loaded.values() if plugin.module in modules}
    return files | {name: PACKAGE_PREFIX + version for module, (name, version) in registry.plugin_packages.items()
                    if module in modules}


def require_plugins(recorded: Mapping[str, str], folder: Path, exact: bool) -> None:
    """Refuse what a folder or a recipe uses and nobody has named; with `exact`, also another plug-in of that name."""
    registry.load_entry_points()
    installed = {name for name, _ in registry.plugin_packages.values()}
    for name, mark in recorded.items():
        if mark.startswith(PACKAGE_PREFIX):
            if name not in installed:
                raise UserError(f"{folder} uses parts of the package {name}, which is not installed; install it: pip "
                                f"install {name}=={mark.removeprefix(PACKAGE_PREFIX)}.")
        elif name not in _loaded:
            raise UserError(f"{folder} uses the plug-in {name}, which is code and is loaded only if you name it; give "
                            f"--plugin {name} (with its path; in Python: stemma.use_plugin).")
        elif exact and _loaded[name].sha256 != mark:
            found = _loaded[name]
            raise UserError(f"the plug-in {found.path} is not the one that {folder} was made with (its SHA-256 is "
                            f"{found.sha256[:12]}..., and was {mark[:12]}...); name the file as it was, or, if what "
                            f'changed in it does not matter here, write "{found.sha256}" for {name} into '
                            f"{folder / 'recipe.toml' if folder.is_dir() else folder} and delete the checksums.json "
                            "beside it.")
