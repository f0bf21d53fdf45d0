"""`fill` and `embed`: predictions for masked tokens, and embeddings of texts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.common_options import USE, computes
from stemma.cli.options import FieldOption, FileEncoding, OverwriteOption
from stemma.cli.output import JsonOption, console, emit
from stemma.errors import pluralize

logger = logging.getLogger(__name__)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL",
                                              help="A run folder, its model/, or a Hugging Face folder.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(fill)
    app.command(rich_help_panel=USE)(embed)


@computes
def fill(model: ModelArgument, text: Annotated[str, typer.Argument(metavar="TEXT", help="Text with [MASK].")],
         top: Annotated[int, typer.Option(help="Number of predictions per mask.")] = 5,
         json: JsonOption = False) -> None:
    """Predict the masked tokens of a text.

    Example: stemma fill run "the [MASK] of the list"
    """
    from stemma.device import choose_device
    from stemma.exchange.load import find_generator, open_model
    from stemma.generation.fill import fill as predict_masks

    generator = find_generator(model)
    if generator is not None:
        logger.info(f"{model} judges tokens and does not predict them; using its generator: {generator}")
    loaded = open_model(generator or model, choose_device())
    predictions = predict_masks(loaded, text, top)

    def human() -> None:
        from rich.text import Text

        for prediction in predictions:
            if len(predictions) > 1:
                console().print(Text(f"position {prediction['position']}", style="dim"))
            for candidate in prediction["candidates"]:
                bar = "█" * round(40 * candidate["probability"])
                console().print(Text(f"{candidate['probability']:7.1%}  {candidate['token']:<16} {bar}"))

    emit({"model": model, "text": text, "predictions": predictions}, json, human)


@computes
def embed(model: ModelArgument,
          path: Annotated[list[str], typer.Argument(metavar="PATH",
                                                    help="Texts, one per line; blank lines are skipped.")],
          out: Annotated[Path, typer.Option(show_default=False, help="The .npy file to write.")], encoded: FileEncoding,
          pooling: Annotated[str, typer.Option(help="mean (over the tokens) or start (the first position).")] = "mean",
          layer: Annotated[int | None, typer.Option(show_default="the output", help="Hidden states of this layer: 0 is "
                                                    "the embedding, -1 the last layer.")] = None,
          normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to L2 norm 1.")] = False,
          field: FieldOption = "text",
          overwrite: OverwriteOption = False,
          json: JsonOption = False) -> None:
    """Compute an embedding for each line of text and write them as a numpy file.

    Example: stemma embed run sentences.txt --out vectors.npy
    """
    import io
    import time

    import numpy as np

    from stemma.atomic_files import atomic_write, check_output_path, make_folder
    from stemma.device import choose_device
    from stemma.errors import UserError
    from stemma.exchange.load import open_model
    from stemma.tasks.embed import embed as compute_embeddings
    from stemma.text.readers import read_passages

    if out.is_dir():
        raise UserError(f"{out} is a folder; --out is the .npy file to write.")
    check_output_path(out, overwrite)
    passages = read_passages(path, documents="line", field=field, **encoded.options())
    texts = [passage.text for passage in passages if passage.starts_document]
    loaded = open_model(model, choose_device())
    start = time.perf_counter()
    vectors = compute_embeddings(loaded, texts, pooling, normalize, layer=layer)
    seconds = time.perf_counter() - start
    content = io.BytesIO()
    np.save(content, vectors)
    make_folder(out.parent)
    atomic_write(out, content.getvalue())
    result = {"out": str(out), "vectors": len(vectors), "width": vectors.shape[1], "pooling": pooling,
              **({} if layer is None else {"layer": layer}), "normalized": normalize, "seconds": seconds}
    emit(result, json, lambda: print(f"{pluralize(len(vectors), 'vector')} of size {vectors.shape[1]:,} in {out} "
                                     f"({seconds:.1f} s)"))
