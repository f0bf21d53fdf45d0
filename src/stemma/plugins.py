"""Plug-ins: Python files of the user that register parts (`registry.py`).

A plug-in is code, so it is loaded only if the user names it: with `--plugin FILE.py`, with `stemma.use_plugin`, or in a
recipe file that the user names. The recipe of a run or model records its plug-ins by name and SHA-256. Reading such a
folder loads no code; it requires that the same plug-ins are loaded.
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

PACKAGE_PREFIX = "package "  # before a package's version; a file has its SHA-256 instead


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in file."""

    path: Path
    sha256: str
    module: str  # the name under which its parts are registered

    @property
    def name(self) -> str:
        return self.path.name


_loaded: dict[str, Plugin] = {}  # by file name
_lock = threading.RLock()


def use_plugin(path: str | Path) -> Plugin:
    """Load a plug-in, so that recipes can name its parts. Loads it again if the file has changed."""
    file = Path(path)
    try:
        code = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the plug-in {file}: {error.strerror or error}; give the path of a Python file."
                        ) from error
    digest = hashlib.sha256(code).hexdigest()
    with _lock:
        loaded = _loaded.get(file.name)
        if loaded is not None and loaded.sha256 == digest:
            return loaded
        if loaded is not None and loaded.path != file.resolve():
            raise UserError(f"{file} and {loaded.path} are two plug-ins of one name, by which a run remembers them; "
                            "rename one of the files.")
        plugin = Plugin(file.resolve(), digest, f"stemma_plugin_{file.stem}")
        previous_entries = registry.unregister(plugin.module)
        try:
            _run(file, code, plugin)
        except BaseException:
            registry.unregister(plugin.module)
            registry.restore(previous_entries)
            raise
        _loaded[file.name] = plugin
        return plugin


def _run(file: Path, code: bytes, plugin: Plugin) -> None:
    """Execute the file as a module; errors are reported with their line."""
    module = ModuleType(plugin.module)
    module.__file__ = str(plugin.path)
    sys.modules[plugin.module] = module  # settings look up their types there
    try:
        exec(compile(code, str(plugin.path), "exec"), module.__dict__)
    except SyntaxError as error:
        location = file if error.filename == str(plugin.path) else error.filename
        raise UserError(f"the plug-in {location}, line {error.lineno}: {error.msg}; correct it and run again.") \
            from error
    except UserError as error:
        raise UserError(f"the plug-in {file}, line {_line(error, plugin)}: {error.message}", error.problems) from error
    except (Exception, SystemExit) as error:
        raise UserError(f"the plug-in {file}, line {_line(error, plugin)}: {_error_text(error)}; correct it and run "
                        "again.") from error
    if not registry.entries_of_module(plugin.module):
        raise UserError(f"the plug-in {file} registers nothing; put @register(SLOT, KIND, SETTINGS) over a class or a "
                        f"function of its own, where SLOT is one of {', '.join(registry.BUILT_IN)}.")


def _line(error: BaseException, plugin: Plugin) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(plugin.path)]
    return lines[-1] if lines else None


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def plugin_error(error: BaseException) -> UserError | None:
    """A UserError with the line of the plug-in that raised the error, directly or in a function it called; None if no
    plug-in is involved."""
    for plugin in _loaded.values():
        line = _line(error, plugin)
        if line is not None:
            return UserError(f"the plug-in {plugin.path}, line {line}: {_error_text(error)}; correct it and run again "
                             "(--debug shows the traceback).")
    return None


def command_line_options() -> list[str]:
    """The loaded plug-ins as command-line options of another process."""
    return [word for plugin in _loaded.values() for word in ("--plugin", str(plugin.path))]


def plugins_of(parts: Iterable[registry.RegistryEntry]) -> dict[str, str]:
    """The plug-ins of these parts, as a folder records them: SHA-256 by file name, or a package's version."""
    modules = {part.module for part in parts}
    files = {plugin.name: plugin.sha256 for plugin in _loaded.values() if plugin.module in modules}
    return files | {name: PACKAGE_PREFIX + version for module, (name, version) in registry.plugin_packages.items()
                    if module in modules}


def require_plugins(recorded: Mapping[str, str], folder: Path, exact: bool) -> None:
    """Raise if a plug-in that a folder or recipe uses is not loaded; with `exact`, also if its content differs."""
    registry.load_entry_points()
    installed = {name for name, _ in registry.plugin_packages.values()}
    for name, recorded_version in recorded.items():
        if recorded_version.startswith(PACKAGE_PREFIX):
            if name not in installed:
                raise UserError(f"{folder} uses parts of the package {name}, which is not installed; install it: pip "
                                f"install {name}=={recorded_version.removeprefix(PACKAGE_PREFIX)}.")
        elif name not in _loaded:
            raise UserError(f"{folder} uses the plug-in {name}, which is code and is loaded only if you name it; give "
                            f"--plugin {name} (with its path; in Python: stemma.use_plugin).")
        elif exact and _loaded[name].sha256 != recorded_version:
            plugin = _loaded[name]
            digests = f"{plugin.sha256[:12]}..., and was {recorded_version[:12]}..."
            raise UserError(f"the plug-in {plugin.path} is not the one that {folder} was made with (its SHA-256 is "
                            f"{digests}); name the file as it was, or, if what "
                            f'changed in it does not matter here, write "{plugin.sha256}" for {name} into '
                            f"{folder / 'recipe.toml' if folder.is_dir() else folder} and delete the checksums.json "
                            "beside it.")
