"""`generate`: a model writes on."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from stemma.cli.common_options import USE, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.output import JsonOption, emit
from stemma.cli.stdio import text_output
from stemma.errors import UserError

logger = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(generate)


@dataclass(frozen=True)
class Writing:
    """How a text is written; the names are those of `generation.options.Options`."""

    tokens: Annotated[int, typer.Option(help="Write at most so many tokens.")] = 64
    min_tokens: Annotated[int, typer.Option(help="Do not end before so many.")] = 0
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token instead of drawing one.")] = False
    temperature: Annotated[float | None, typer.Option(show_default="1",
                                                      help="Below 1 is tamer, above 1 wilder.")] = None
    top_k: Annotated[int | None, typer.Option(help="Draw among the K likeliest tokens.")] = None
    top_p: Annotated[float | None, typer.Option(show_default="0.95, or 1 with --top-k", help="Draw among the likeliest "
                                                "tokens that together are so probable.")] = None
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: shun tokens that the text has already.")] = 1.0
    beams: Annotated[int, typer.Option(help="Search with so many beams instead of drawing.")] = 1
    length_penalty: Annotated[float | None, typer.Option(show_default="0.6 with --beams",
                                                         help="The higher, the longer the texts that win.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None
    completions: Annotated[int, typer.Option(help="So many texts for each prompt.")] = 1
    seed: Annotated[int | None, typer.Option(show_default="another each time", help="Fixes what is drawn.")] = None
    batch: Annotated[int, typer.Option(help="Write so many texts at the same time.")] = 8
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Read every token once, or all again each "
                                                                   "time (slow; the same text).")] = True
    crop: Annotated[bool, typer.Option("--crop", help="Of a prompt that is too long read the end (of a source "
                                                         "to write from, the beginning).")] = False


@computes
def generate(
    model: ModelArgument, writing: Writing,
    prompt: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", show_default=False,
                                                       help="What to write on from, one or several.")] = None,
    prompts: Annotated[str | None, typer.Option(metavar="FILE", help="A prompt a line; - is standard input.")] = None,
    json: JsonOption = False,
) -> None:
    """Write on from a prompt, by drawing each next token from the likely ones (or --greedy, or --beams). A model with
    an encoder and a decoder reads the prompt and writes another text; see also `stemma translate`.

    Example: stemma generate run "Once upon a time" --tokens 100 --temperature 0.8 --seed 1
    """
    from stemma.generation.options import GenerationOptions

    choices: dict[str, Any] = {**vars(writing), "stop": tuple(writing.stop or ())}
    options = GenerationOptions(**choices)  # what cannot be followed is said before a model is loaded
    asked = _prompts(prompt or [], prompts)

    from stemma.device import choose_device
    from stemma.exchange.load import open_model
    from stemma.generation.decoding_mode import decoding_spec, is_right_to_left
    from stemma.generation.generate import generate as write
    from stemma.generation.generate import new_seed, stream

    if options.do_sample and writing.seed is None:
        choices["seed"] = new_seed()
    loaded = open_model(model, choose_device())
    backward, scheme = is_right_to_left(loaded), decoding_spec(loaded)
    goes_on = scheme is None or scheme.continues_prompt  # otherwise the text is one of its own, without the prompt
    alone = len(asked) * writing.completions * writing.beams == 1
    if alone and not json and not backward and sys.stdout.isatty():
        print(asked[0] if goes_on else "", end="", flush=True)
        for piece in stream(loaded, asked[0], **choices):
            print(piece, end="", flush=True)
        print()
    else:
        written = write(loaded, asked, **choices)
        result = {"model": model, "prompts": asked, "seed": choices["seed"] if options.do_sample else None,
                  "completions": [{"prompt": one.prompt_index, "text": one.text, "tokens": one.tokens,
                                   "log_probability": one.log_probability,
                                   "ended": one.finish_reason} for one in written]}

        def human() -> None:
            for number, one in enumerate(written):
                prompt = asked[one.prompt_index] if goes_on else ""
                if len(written) > 1:
                    print(f"{chr(10) if number else ''}[{one.prompt_index + 1}] ", end="", file=text_output())
                print(one.text + prompt if backward else prompt + one.text, file=text_output())

        emit(result, json, human)
    if options.do_sample and writing.seed is None and not json:
        logger.info(f"drawn with --seed {choices['seed']}")


def _prompts(given: list[str], file: str | None) -> list[str]:
    """Those of the command line, then those of the file; a bare `generate MODEL` begins a text of its own."""
    if file is None:
        return given or [""]
    from stemma.text.readers import read_passages

    read: list[str] = []
    for passage in read_passages([file], documents="line"):
        if passage.starts_document:
            read.append(passage.text)
        else:
            read[-1] += passage.text
    if not read:
        raise UserError(f"{file} has no prompts: every line of it is blank; write one a line.")
    return [*given, *read]
