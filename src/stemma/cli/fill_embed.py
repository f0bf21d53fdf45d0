"""`fill` and `embed`: predictions for masked tokens, and embeddings of texts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.common_options import USE, computes
from stemma.cli.options import FieldOption, FileEncoding, OverwriteOption
from stemma.cli.output import JsonOption, console, emit
from stemma.errors import UserError, pluralize

logger = logging.getLogger(__name__)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL",
                                              help="A run folder, its model/, or a Hugging Face folder.")]


LayerOption = Annotated[str | None, typer.Option(
    "--layer", metavar="N|static|mean|all", show_default="the last one", help="Layer of the hidden states: 0 is the "
    "embedding, -1 the last layer, static the token embedding before positions, mean the mean of all layers.")]


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
          out: Annotated[Path, typer.Option(show_default=False, help="The .npy file to write; with --tokens a .npz "
                                                                     "file.")], encoded: FileEncoding,
          pooling: Annotated[str, typer.Option(help="mean (over the tokens) or start (the first position).")] = "mean",
          normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to L2 norm 1.")] = False,
          layer: LayerOption = None,
          tokens: Annotated[bool, typer.Option("--tokens", help="Write a vector for each token: arrays vectors, token, "
                                               "text (the index of its line), start and end (characters).")] = False,
          field: FieldOption = "text",
          overwrite: OverwriteOption = False,
          json: JsonOption = False) -> None:
    """Compute an embedding for each line of text and write them as a numpy file.

    Example: stemma embed run sentences.txt --out vectors.npy

    With --layer all, the array is (lines, layers, size).
    """
    import io
    import time

    import numpy as np

    from stemma.atomic_files import atomic_write, check_output_path, make_folder
    from stemma.device import choose_device
    from stemma.exchange.load import open_model
    from stemma.tasks.embed import embed as compute_embeddings
    from stemma.tasks.embed import embed_tokens, token_arrays
    from stemma.tasks.layer_states import parse_layer
    from stemma.text.readers import read_passages

    kind, suffix = ("a .npz file, for --tokens", ".npz") if tokens else ("the .npy file to write", ".npy")
    if out.is_dir():
        raise UserError(f"{out} is a folder; --out is {kind}.")
    if tokens and (out.suffix != suffix or pooling != "mean" or normalize):
        raise UserError(f"{out} does not end in .npz: --tokens writes several arrays." if out.suffix != suffix else
                        "--tokens writes the vectors of all tokens as they are; leave out --pooling and --normalize.")
    parse_layer(layer)
    check_output_path(out, overwrite)
    passages = read_passages(path, documents="line", field=field, **encoded.options())
    texts = [passage.text for passage in passages if passage.starts_document]
    loaded = open_model(model, choose_device())
    start = time.perf_counter()
    content = io.BytesIO()
    if tokens:
        arrays = token_arrays(embed_tokens(loaded, texts, layer))
        vectors = arrays["vectors"]
    else:
        vectors = compute_embeddings(loaded, texts, pooling, normalize, layer=layer)
    seconds = time.perf_counter() - start
    if tokens:
        np.savez(content, allow_pickle=False, **arrays)
    else:
        np.save(content, vectors)
    make_folder(out.parent)
    atomic_write(out, content.getvalue())
    result = {"out": str(out), "vectors": len(vectors), "width": vectors.shape[-1], "pooling": None if tokens else
              pooling, "normalized": normalize, "layer": layer, "layers": vectors.shape[1] if vectors.ndim > 2 else 1,
              "seconds": seconds}
    of_each = f" for each of {vectors.shape[1]} layers" if vectors.ndim > 2 else ""
    emit(result, json, lambda: print(f"{pluralize(len(vectors), 'vector')} of size {vectors.shape[-1]:,}{of_each} in "
                                     f"{out} ({seconds:.1f} s)"))
