"""`pairs`: minimal pairs (BLiMP) by phenomenon, of a model or of all revisions of a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import pluralize
from stemma.progress import progress_stage


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(pairs)


@computes
def pairs(model: ModelArgument,
          path: Annotated[str, typer.Argument(metavar="DIR", help="Pairs: a folder of .jsonl files, or one file; each "
                                              "line has sentence_good and sentence_bad, and may have UID (phenomenon; "
                                              "by default the file name), linguistics_term and field.")],
          limit: Annotated[int | None, at_least(1, "Use only the first N pairs of each phenomenon",
                                                metavar="N")] = None,
          scoring: Annotated[str | None, typer.Option(
              metavar="KIND", show_default=False, help="How sentences are scored, if the model has several ways: "
              "causal, after_first (without the separator before the sentence), prefix, masked, permuted, infilling, "
              "masked_span, bound (mdlm: the bound of `stemma perplexity`); by default the closest to its "
              "training.")] = None,
          revisions: Annotated[bool, typer.Option("--revisions", help="Score every revision of the run (`stemma "
                                                  "pretrain --checkpoint-words`), then its model.")] = False,
          json: JsonOption = False) -> None:
    """Score minimal pairs such as BLiMP: how often is the acceptable sentence more probable? By phenomenon and field.

    Causal models are scored by likelihood, masked models by pseudo-likelihood (each token masked in turn). A tie counts
    as half, so a constant score gives 50%.

    Example: stemma pairs run blimp/ --limit 100
    """
    from stemma.evaluation.minimal_pairs import num_sentences, read_pairs
    from stemma.evaluation.revision_curve import score_models

    items = read_pairs(path, limit)
    with progress_stage("scoring", unit="sentences") as work:
        result = score_models(model, items, scoring, revisions, work.advance,
                              lambda models: setattr(work, "total", models * num_sentences(items)))
    emit({"model": model, "data": path, **result}, json, lambda: _show(result))


def _show(result: dict[str, Any]) -> None:
    if "revisions" in result:
        fields = list(result["fields"])
        print("\n".join(align_columns([("revision", "words", "accuracy", "95% interval", *fields), *(
            (row["revision"], "" if row["words"] is None else f"{row['words']:,}", f"{row['accuracy']:.1%}",
             _interval(row), *(f"{row['fields'][name]['accuracy']:.1%}" for name in fields))
            for row in result["revisions"])])))
        print(f"\nphenomena of the last row ({result['revisions'][-1]['revision']}):")
    rows: list[tuple[str, ...]] = [("phenomenon", "accuracy", "95% interval", "pairs", "ties")]
    for name, detail in result["details"].items():
        rows.append((name, *_cells(detail)))
    if len(result["details"]) > 1:
        rows += [(f"field {name}", *_cells(detail)) for name, detail in result["fields"].items()]
        rows.append(("mean of phenomena", *_cells(result)))
    print("\n".join(align_columns(rows)))
    print(f"chance level 50.0% · scoring {result['scoring']} · {pluralize(result['sentences'], 'sentence')} in "
          f"{result['seconds']:,.1f} s ({result['sentences_per_second']:,.0f} sentences/s)")


def _cells(detail: dict[str, Any]) -> tuple[str, ...]:
    return f"{detail['accuracy']:.1%}", _interval(detail), f"{detail['pairs']:,}", f"{detail['ties']:,}"


def _interval(detail: dict[str, Any]) -> str:
    low, high = detail["interval"]
    return f"{low:.1%} to {high:.1%}"
