"""Shell completion: `stemma --install-completion`, and the completions of recipe names.

The scripts call `stemma` with `_STEMMA_COMPLETE` set, and typer prints the completions. Recipe names come from the
files alone: importing the recipe loader is too slow for TAB.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.errors import UserError, did_you_mean

VARIABLE = "_STEMMA_COMPLETE"
FLAGS = ("--install-completion", "--show-completion")
RECIPES = (Path(__file__).parent.parent / "recipes", Path("recipes"))  # of the package, and of the user

# bash splits words at "@", "=" and ":", which occur in recipe names and changes. The script passes the whole word and
# strips the part before the last of them from the completions.
BASH = r"""
_stemma_completion() {
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} words current last
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    last=$((${#words[@]} - 1))
    current=${words[last]}
    IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" COMP_CWORD=$last _STEMMA_COMPLETE=complete_bash "$1" ) )
    COMPREPLY=( "${COMPREPLY[@]#"${current%"${current##*[@=:]}"}"}" )
}
complete -o default -F _stemma_completion stemma
"""
ZSH = r"""
#compdef stemma
_stemma_completion() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _STEMMA_COMPLETE=complete_zsh stemma)
}
compdef _stemma_completion stemma
"""
FISH = r"""
function __stemma_complete
    set -lx _TYPER_COMPLETE_FISH_ACTION $argv[1]
    env _STEMMA_COMPLETE=complete_fish _TYPER_COMPLETE_ARGS=(commandline -cp) stemma
end
complete --command stemma --no-files --arguments "(__stemma_complete get-args)" --condition "__stemma_complete is-args"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
# For each shell: the file for the script, the start-up file, and the line in it that loads the script.
INSTALL_PATHS = {"bash": (".bash_completions/stemma.sh", ".bashrc", "source ~/.bash_completions/stemma.sh"),
          "zsh": (".zfunc/_stemma", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
          "fish": (".config/fish/completions/stemma.fish", None, "")}


def add_running_shell(words: Sequence[str]) -> list[str]:
    """The command line with the name of the running shell added to a completion flag without one."""
    if words and words[0] in FLAGS and (len(words) == 1 or words[1].startswith("-")):
        return [words[0], _running_shell(), *words[1:]]
    return list(words)


def init_completion() -> None:
    """Set up typer's completion if a shell script calls for it."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def _running_shell() -> str:
    import shellingham

    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return Path(os.environ.get("SHELL", "")).name


def _script(shell: str) -> str:
    if shell not in SCRIPTS:
        problem = f'there is no completion for "{shell}".' if shell else "cannot detect the running shell."
        raise UserError(f"{problem}{did_you_mean(shell, SCRIPTS)} Name one of {', '.join(SCRIPTS)}, as in `stemma "
                        "--install-completion bash`.")
    return SCRIPTS[shell].strip() + "\n"


def _show(shell: str | None) -> None:
    if shell is not None:
        sys.stdout.write(_script(shell))
        raise typer.Exit


def _install(shell: str | None) -> None:
    if shell is None:
        return
    content = _script(shell)
    script_path, startup_path, line = INSTALL_PATHS[shell]
    file = Path.home() / script_path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    if startup_path is not None:
        startup = Path.home() / startup_path
        text = startup.read_text(encoding="utf-8") if startup.is_file() else ""
        if line not in text.splitlines():
            startup.write_text(text + ("" if not text or text.endswith("\n") else "\n") + line + "\n", encoding="utf-8")
    print(f"completion for {shell} is in {file}; open a new terminal to use it.")
    raise typer.Exit


InstallOption = Annotated[str | None, typer.Option(FLAGS[0], metavar="[SHELL]", callback=_install, is_eager=True,
                                                   show_default=False, help="Install TAB completion for this shell: "
                                                   f"{', '.join(SCRIPTS)}.")]
ShowOption = Annotated[str | None, typer.Option(FLAGS[1], metavar="[SHELL]", callback=_show, is_eager=True,
                                                show_default=False, help="Print the completion script.")]


def recipe_names(incomplete: str) -> list[str]:
    """Recipe names, with and without size, that start with `incomplete`; also those of the folder recipes/."""
    paths = {path.stem: path for folder in reversed(RECIPES) if folder.is_dir() for path in folder.glob("*.toml")}
    name, _, _ = incomplete.partition("@")
    candidates = []
    for stem in sorted(paths):
        if stem.startswith(name):
            candidates += [stem, *(f"{stem}@{size}" for size in _sizes(stem, paths))]
    return [candidate for candidate in candidates if candidate.startswith(incomplete)]


def _sizes(name: str, paths: Mapping[str, Path]) -> list[str]:
    """The recipe's own sizes, and the laptop sizes of its ancestors."""
    sizes: dict[str, None] = {}
    visited: set[str] = set()
    current: str | None = name
    while current is not None and current in paths and current not in visited:
        visited.add(current)
        try:
            content: dict[str, Any] = tomllib.loads(paths[current].read_text(encoding="utf-8"))
        except (OSError, ValueError):
            break  # the error is reported when the recipe is used
        sizes |= dict.fromkeys(size for size, values in content.get("sizes", {}).items()
                               if current == name or values.get("laptop"))
        parent = content.get("parent")
        current = Path(parent).stem if isinstance(parent, str) else None
    return list(sizes)
