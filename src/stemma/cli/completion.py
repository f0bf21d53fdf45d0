"""Shell completion: `stemma --install-completion`, and what TAB offers for the name of a recipe.

The scripts call `stemma` itself with `_STEMMA_COMPLETE` set, and typer answers from the options of the verbs. Recipes
are found by looking at their files: to import what checks them would take longer than a person waits for TAB.
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
RECIPES = (Path(__file__).parent.parent / "recipes", Path("recipes"))  # ours, and the user's

# bash parts words at "@", "=" and ":", which stand inside the names of recipes and in changes: they are put together
# for the question, and taken off the answers
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
# where the script goes, and what a file that the shell reads must say for it to be found
PLACES = {"bash": (".bash_completions/stemma.sh", ".bashrc", "source ~/.bash_completions/stemma.sh"),
          "zsh": (".zfunc/_stemma", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
          "fish": (".config/fish/completions/stemma.fish", None, "")}


def with_shell(words: Sequence[str]) -> list[str]:
    """The command line with the shell that is running, where it asks for completion and names none."""
    if words and words[0] in FLAGS and (len(words) == 1 or words[1].startswith("-")):
        return [words[0], _running_shell(), *words[1:]]
    return list(words)


def prepare() -> None:
    """If a shell asks what TAB may offer, make typer answer."""
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
        found = f'there is no completion for "{shell}".' if shell else "which shell this is cannot be told."
        raise UserError(f"{found}{did_you_mean(shell, SCRIPTS)} Name one of {', '.join(SCRIPTS)}, as in `stemma "
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
    place, settings, line = PLACES[shell]
    file = Path.home() / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    if settings is not None:
        known = Path.home() / settings
        text = known.read_text(encoding="utf-8") if known.is_file() else ""
        if line not in text.splitlines():
            known.write_text(text + ("" if not text or text.endswith("\n") else "\n") + line + "\n", encoding="utf-8")
    print(f"completion for {shell} is in {file}; open another terminal to use it.")
    raise typer.Exit


InstallOption = Annotated[str | None, typer.Option(FLAGS[0], metavar="[SHELL]", callback=_install, is_eager=True,
                                                   show_default=False, help="Set up completion by TAB for this shell: "
                                                   f"{', '.join(SCRIPTS)}.")]
ShowOption = Annotated[str | None, typer.Option(FLAGS[1], metavar="[SHELL]", callback=_show, is_eager=True,
                                                show_default=False, help="Print the script that does it.")]


def recipe_names(incomplete: str) -> list[str]:
    """The recipes whose names begin so, each with its sizes; those of the user's folder recipes/ among them."""
    paths = {path.stem: path for folder in reversed(RECIPES) if folder.is_dir() for path in folder.glob("*.toml")}
    name, _, _ = incomplete.partition("@")
    found = []
    for one in sorted(paths):
        if one.startswith(name):
            found += [one, *(f"{one}@{size}" for size in _sizes(one, paths))]
    return [one for one in found if one.startswith(incomplete)]


def _sizes(name: str, paths: Mapping[str, Path]) -> list[str]:
    """The sizes of the recipe itself, and those of its whole line that are for laptops."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    here: str | None = name
    while here is not None and here in paths and here not in seen:
        seen.add(here)
        try:
            content: dict[str, Any] = tomllib.loads(paths[here].read_text(encoding="utf-8"))
        except (OSError, ValueError):
            break  # whoever uses it is told what is wrong with it
        sizes = content.get("sizes", {})
        found |= dict.fromkeys(size for size, values in sizes.items() if here == name or values.get("laptop"))
        parent = content.get("parent")
        here = Path(parent).stem if isinstance(parent, str) else None
    return list(found)
