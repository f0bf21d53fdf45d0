"""The command `stemma`: thin verbs over the package, exit codes and error messages.

Verbs import what they need when they run, so that `--help` is fast.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from stemma import plugins
from stemma.cli import (
    clean,
    compare_ablate,
    cost,
    export,
    fill_embed,
    generate,
    multitask,
    pairs,
    pipeline,
    predict,
    pretrain,
    quickstart,
    recipes,
    senses,
    translate,
    vectors,
    zero_shot,
)
from stemma.cli.claims import claims_app
from stemma.cli.common_options import LAB, PANELS, TASKS, TEXT, add_common_options
from stemma.cli.completion import InstallOption, ShowOption, add_running_shell, init_completion
from stemma.cli.corpus import corpus_app
from stemma.cli.finetune import TaskGroup, finetune_app
from stemma.cli.output import emit, notes_printed
from stemma.cli.stdio import check_output, discard_output, environment_error, safe_streams
from stemma.cli.tokenizer import tokenizer_app
from stemma.device import use_device
from stemma.errors import Interrupted, UserError, did_you_mean
from stemma.progress import show_progress


class CommandGroup(TyperGroup):
    """A command group whose errors name its verbs: all of them if none is given, the closest match for a typo."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            raise UserError(f"`{ctx.command_path}` needs a verb: {', '.join(self.list_commands(ctx))}.")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        unknown = args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if unknown and not ctx.resilient_parsing:  # resilient_parsing is set during shell completion
            verbs = self.list_commands(ctx)
            raise UserError(f'no verb "{args[0]}" in `{ctx.command_path}`.{did_you_mean(args[0], verbs)} '
                            f"`{ctx.command_path} --help` lists all of them.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The verbs by panel, groups before single verbs; all columns are aligned."""
        verbs = {name: verb for name in self.list_commands(ctx) if (verb := self.get_command(ctx, name)) is not None}
        width = max(map(len, verbs), default=0)
        for panel in (*PANELS, None):
            rows = [(f"{name:<{width}}", verb.get_short_help_str(formatter.width - 6 - width))
                    for name, verb in sorted(verbs.items(), key=lambda item: not isinstance(item[1], TyperGroup))
                    if getattr(verb, "rich_help_panel", None) == panel]
            if rows:
                with formatter.section(panel or "Commands"):
                    formatter.write_dl(rows)


app = typer.Typer(name="stemma", cls=CommandGroup, rich_markup_mode=None, add_completion=False,
                  invoke_without_command=True,
                  context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})


def _version(requested: bool) -> None:
    if requested:
        from stemma.version import described

        print(described())
        raise typer.Exit


@app.callback()
def _root(context: typer.Context,
          version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                                help="Print the version and its environment.")] = False,
          install_completion: InstallOption = None, show_completion: ShowOption = None) -> None:
    """Pre-train, fine-tune and compare language models. A model is a recipe: the changes from its parent recipe.

    Example: stemma pretrain bert@tiny --corpus notes.txt --out run
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


quickstart.register(app)
recipes.register(app)
app.add_typer(tokenizer_app, name="tokenizer", cls=CommandGroup, rich_help_panel=TEXT)
app.add_typer(corpus_app, name="corpus", cls=CommandGroup, rich_help_panel=TEXT)
pretrain.register(app)
app.add_typer(finetune_app, name="finetune", cls=TaskGroup, rich_help_panel=TASKS)
multitask.register(app)
pipeline.register(app)
compare_ablate.register(app)
cost.register(app)
app.add_typer(claims_app, name="claims", cls=CommandGroup, rich_help_panel=LAB)
fill_embed.register(app)
generate.register(app)
translate.register(app)
zero_shot.register(app)
pairs.register(app)
senses.register(app)
predict.register(app)
export.register(app)
vectors.register(app)
clean.register(app)
add_common_options(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 2 bad input, 1 internal error, 130 interrupted."""
    words = add_running_shell(sys.argv[1:] if arguments is None else arguments)
    init_completion()
    options = words[:words.index("--")] if "--" in words else words
    debug, as_json = "--debug" in options, "--json" in options
    words = [word for word in options if word != "--debug"] + words[len(options):]
    with safe_streams():
        try:
            check_output()
            with notes_printed(), use_device(None), _terminate_like_interrupt(), show_progress():
                code = _build_command().main(words, prog_name="stemma", standalone_mode=False)
            sys.stdout.flush()
        except BaseException as error:
            if debug and not isinstance(error, SystemExit | BrokenPipeError):
                import traceback

                traceback.print_exc()
            return _report_error(error, as_json)
        if code == 130:  # typer returns it after Ctrl-C
            return _report_error(KeyboardInterrupt(), as_json)
    return code if isinstance(code, int) else 0


@functools.cache
def _build_command() -> Any:
    """The click command. Cached: building it from the signatures takes as long as a short verb."""
    return typer.main.get_command(app)


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt like Ctrl-C, so that unfinished output is removed."""
    from stemma.training.signals import STOP_SIGNALS, leave_terminal, signal_handlers

    def stop(number: int, frame: object) -> NoReturn:
        leave_terminal()
        raise KeyboardInterrupt

    with signal_handlers([number for number in STOP_SIGNALS if number != signal.SIGINT], stop):
        yield


def _report_error(error: BaseException, as_json: bool) -> int:
    try:
        code = _explain(error, as_json)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (UserError, OSError):  # the message itself cannot be written
        discard_output()
        return 2
    return code


def _explain(error: BaseException, as_json: bool) -> int:
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        # `stemma tree | head -1`: the reader has closed the pipe; at exit the interpreter must not report that
        discard_output()
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        message = str(error) or "interrupted."
        print(message, file=sys.stderr)
        if as_json:
            emit({"interrupted": message}, as_json=True)
        return 130
    if hasattr(error, "format_message"):
        error = UserError(_usage(error))
    if not isinstance(error, UserError):
        error = environment_error(error) or plugins.plugin_error(error) or error
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
        if as_json and sys.stdout is not None:
            emit({"error": error.message, "problems": [f"{where}: {what}" if where else what
                                                       for where, what in error.problems]}, as_json=True)
        return 2
    message = " ".join(str(error).split()) or "no message"
    summary = f"internal error: {type(error).__name__}: {message}"
    print(f"{summary}; run again with --debug for the traceback", file=sys.stderr)
    if as_json:
        emit({"error": summary}, as_json=True)
    return 1


def _usage(error: Any) -> str:
    """The message for an invalid command line, with the command that prints its help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "stemma"
    option = getattr(error, "option_name", None)
    if option and context and type(error).__name__ == "NoSuchOption":
        from stemma.schema.aliases import option_hint

        parameters = context.command.get_params(context)
        flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("-")]
        arguments = [parameter.metavar or "" for parameter in parameters if not parameter.opts[0].startswith("-")]
        hint = option_hint(option, flags, arguments) or did_you_mean(option, flags)
        return f'no option "{option}" of `{path}`.{hint} `{path} --help` lists all of them.'
    message = error.format_message().strip().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; `{path} --help` shows how it is used."
