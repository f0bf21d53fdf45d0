"""`generate`: continue a prompt, or generate a text from a source text."""

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
class DecodingOptions:
    """How a text is generated. The fields are those of `generation.options.GenerationOptions`."""

    tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 64
    min_tokens: Annotated[int, typer.Option(help="Minimum number of new tokens.")] = 0
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most probable token; do not sample.")] = False
    temperature: Annotated[float | None, typer.Option(show_default="1",
                                                      help="Softmax temperature of sampling.")] = None
    top_k: Annotated[int | None, typer.Option(help="Sample among the K most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option(show_default="0.95, or 1 with --top-k", help="Nucleus sampling: among "
                                                "the most probable tokens with this total probability.")] = None
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: lower the logits of tokens in the text.")] = 1.0
    steps: Annotated[int | None, typer.Option(show_default="128", help="Diffusion models (mdlm): number of steps in "
                                              "which the text is unmasked; fewer are faster.")] = None
    beams: Annotated[int, typer.Option(help="Beam size; above 1: beam search, no sampling.")] = 1
    length_penalty: Annotated[float | None, typer.Option(show_default="0.6 with --beams",
                                                         help="Beam search: higher values favour longer texts.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Stop string, not printed; may be repeated.")] = None
    completions: Annotated[int, typer.Option(help="Number of texts per prompt.")] = 1
    seed: Annotated[int | None, typer.Option(show_default="random", help="Seed of the sampling.")] = None
    batch: Annotated[int, typer.Option(help="Batch size.")] = 8
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use a KV cache; without it, generation is "
                                                                   "slower and gives the same text.")] = True
    crop: Annotated[bool, typer.Option("--crop", help="Truncate a prompt that is too long: keep its end (of a "
                                                      "source text, its beginning).")] = False


@computes
def generate(
    model: ModelArgument, decoding: DecodingOptions,
    prompt: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", show_default=False,
                                                       help="One or more prompts.")] = None,
    prompts: Annotated[str | None, typer.Option(metavar="FILE", help="One prompt per line; - is stdin.")] = None,
    json: JsonOption = False,
) -> None:
    """Continue a prompt by sampling (or with --greedy or --beams). An encoder-decoder takes the prompt as its source
    and generates a new text; see also `stemma translate`. A diffusion model unmasks the text in --steps steps.

    Example: stemma generate run "Once upon a time" --tokens 100 --temperature 0.8 --seed 1
    """
    from stemma.generation.options import GenerationOptions

    settings: dict[str, Any] = {**vars(decoding), "stop": tuple(decoding.stop or ())}
    options = GenerationOptions(**settings)  # conflicts are reported before the model is loaded
    inputs = _prompts(prompt or [], prompts)

    from stemma.device import choose_device
    from stemma.exchange.load import open_model
    from stemma.generation.decoding_mode import decoding_spec, is_right_to_left
    from stemma.generation.generate import generate as run_generate
    from stemma.generation.generate import new_seed, stream

    if options.do_sample and decoding.seed is None:
        settings["seed"] = new_seed()
    loaded = open_model(model, choose_device())
    backward, spec = is_right_to_left(loaded), decoding_spec(loaded)
    continues_prompt = spec is None or spec.continues_prompt  # otherwise the prompt is not part of the text
    single_text = len(inputs) * decoding.completions * decoding.beams == 1
    if single_text and not json and not backward and sys.stdout.isatty():
        print(inputs[0] if continues_prompt else "", end="", flush=True)
        for piece in stream(loaded, inputs[0], **settings):
            print(piece, end="", flush=True)
        print()
    else:
        completions = run_generate(loaded, inputs, **settings)
        result = {"model": model, "prompts": inputs, "seed": settings["seed"] if options.do_sample else None,
                  "completions": [{"prompt": completion.prompt_index, "text": completion.text,
                                   "tokens": completion.tokens, "log_probability": completion.log_probability,
                                   "ended": completion.finish_reason} for completion in completions]}

        def human() -> None:
            for index, completion in enumerate(completions):
                prompt = inputs[completion.prompt_index] if continues_prompt else ""
                if len(completions) > 1:
                    print(f"{chr(10) if index else ''}[{completion.prompt_index + 1}] ", end="", file=text_output())
                print(completion.text + prompt if backward else prompt + completion.text, file=text_output())

        emit(result, json, human)
    if options.do_sample and decoding.seed is None and not json:
        logger.info(f"sampled with --seed {settings['seed']}")


def _prompts(arguments: list[str], file: str | None) -> list[str]:
    """The prompts of the command line, then those of the file. Without any, one empty prompt: text from scratch."""
    if file is None:
        return arguments or [""]
    from stemma.text.readers import read_passages

    lines: list[str] = []
    for passage in read_passages([file], documents="line"):
        if passage.starts_document:
            lines.append(passage.text)
        else:
            lines[-1] += passage.text
    if not lines:
        raise UserError(f"{file} has no prompts: all lines are blank; write one prompt per line.")
    return [*arguments, *lines]
