"""Stemma in a notebook: a model with methods, and the verbs that take files on the command line as functions.

    model = stemma.load("run")
    model.fill("the [MASK] of the list")
    model.generate("Once upon a time", tokens=40, seed=1)[0].text

Each method and function calls what the verb of its name calls. None of them changes the model, so that any number of
threads may use one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma import model as _model
from stemma.device import choose_device
from stemma.exchange import build as _build
from stemma.exchange import load as _load
from stemma.recipe_loading import Recipe

if TYPE_CHECKING:
    import numpy as np

    from stemma.evaluation.likelihood import ContinuationScore
    from stemma.generation.generate import Completion
    from stemma.generation.translate import TranslationResult

PredictRows = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | Path


class InferenceModel(_model.Model):
    """A model ready to be asked. `recipe`, `tokenizer` and `network` are its parts; `hidden` and `logits` are tensors;
    the other methods take and give text."""

    def fill(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """For each [MASK] of the text, the likeliest tokens with their probabilities."""
        from stemma.generation.fill import fill

        return fill(self, text, top)

    def generate(self, prompts: str | Sequence[str | Sequence[int]], **options: Any) -> list[Completion]:
        """What follows each prompt. `options`: tokens, greedy, temperature, top_k, top_p, beams, completions, seed and
        the others of `stemma.generation.options.Options`."""
        from stemma.generation.generate import generate

        return generate(self, prompts, **options)

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[str]:
        """What follows one prompt, piece by piece while it is written; `options` as for `generate`."""
        from stemma.generation.generate import stream

        return stream(self, prompt, **options)

    def embed(self, texts: str | Sequence[str], pooling: str = "mean", normalize: bool = False,
              inputs: Mapping[str, Sequence[Any]] | None = None) -> np.ndarray:
        """(texts, width): one vector for each text, its mean over the tokens or that of its first position. `inputs`:
        what the network reads besides tokens, by name a list with an array for each text, (its tokens, ...)."""
        from stemma.tasks.embed import embed

        return embed(self, [texts] if isinstance(texts, str) else texts, pooling, normalize, inputs=inputs)

    def score(self, texts: str | Sequence[str], after: str | Sequence[str] = "") -> list[ContinuationScore]:
        """How probable each text is after another: its log-probability in nats, and whether greedy decoding would
        write it. Without `after`, at the beginning of a text."""
        from stemma.evaluation.likelihood import score_continuations

        asked = [texts] if isinstance(texts, str) else list(texts)
        contexts = [after] * len(asked) if isinstance(after, str) else list(after)
        return score_continuations(self, contexts, asked)

    def predict(self, rows: PredictRows, task: str | None = None) -> list[dict[str, Any]]:
        """What a fine-tuned model says of each row: a text, or a dictionary with the columns of a table."""
        from stemma.tasks.predict import predict

        return predict(self, rows, task)

    def translate(self, lines: str | Sequence[str], **choices: Any) -> list[TranslationResult]:
        """A translation of each line. `choices` are the fields of `stemma.generation.options.TranslateOptions`."""
        from stemma.generation.translate import translate

        return translate(self, lines, **choices)


def load(name_or_path: str | Path, device: str | None = None) -> InferenceModel:
    """A model from a run folder, its model/, a Hugging Face folder, or (with the extra `hub`) a hub id; in eval mode
    and fp32. `device`: cpu, cuda, cuda:N, mps, or auto (the default): CUDA if there is any."""
    return _as_inference_model(_load.open_model(name_or_path, choose_device(device)))


def build(name: str | Recipe, vocab_size: int | None = None, changes: Sequence[str] = (),
          device: str = "cpu") -> InferenceModel:
    """A model of a recipe with random weights. `vocab_size` None is the published one. Draws from torch's global
    generator: seed that for fixed weights."""
    model = _as_inference_model(_build.build(name, vocab_size, changes))
    if not any(parameter.is_meta for parameter in model.network.parameters()):  # a network that is only counted
        model.network.to(choose_device(device))
    return model


def _as_inference_model(model: _model.Model) -> InferenceModel:
    return InferenceModel(**{field.name: getattr(model, field.name) for field in fields(model)})


def as_model(model: _model.Model | str | Path) -> _model.Model:
    """A model, or what lies in its folder."""
    return model if isinstance(model, _model.Model) else load(model)


def predict(model: _model.Model | str | Path, rows: PredictRows, task: str | None = None) -> list[dict[str, Any]]:
    """What a fine-tuned model says of each row, in order: what `stemma predict` prints.

        stemma.predict("tuned", ["a good film", "a dull one"])[0]["label"]
        stemma.predict("tuned", pathlib.Path("reviews.tsv"))

    A row is a text, or a dictionary with the columns of a table; a `Path` is a file, read as the verb reads it.
    """
    from stemma.tasks.predict import predict

    return predict(as_model(model), rows, task)


def embed(model: _model.Model | str | Path, texts: Sequence[str], pooling: str = "mean", normalize: bool = False,
          inputs: Mapping[str, Sequence[Any]] | None = None) -> np.ndarray:
    """One vector for each text, as `stemma embed` writes them: (texts, width).

        stemma.embed("run", ["a sentence", "another"]).shape
    """
    from stemma.tasks.embed import embed

    return embed(as_model(model), texts, pooling, normalize, inputs)


def perplexity(model: _model.Model | str | Path, paths: str | Path | Sequence[str], *, length: int | None = None,
               stride: int | None = None, memory: int | None = None, by_document: bool = False,
               documents: str = "blank", field: str = "text", encoding: str = "utf-8",
               errors: str = "strict") -> dict[str, Any]:
    """How well a language model predicts files of text: what `stemma perplexity --json` prints.

        stemma.perplexity("run", "held-out.txt", stride=64)["bits_per_byte"]
    """
    from stemma.evaluation.perplexity import perplexity
    from stemma.text.readers import read_passages

    passages = read_passages(_as_paths(paths), documents=documents, field=field, encoding=encoding, errors=errors)
    return perplexity(as_model(model), passages, length, stride, memory, by_document)


def evaluate(model: _model.Model | str | Path, data: str | Path, *, task: str | None = None,
             file_format: str | None = None,
             columns: Mapping[str, str] | None = None, metrics: Sequence[str] = (), encoding: str = "utf-8",
             errors: str = "strict") -> dict[str, Any]:
    """How good a fine-tuned model is on a file with gold answers: what `stemma evaluate --json` prints, and under
    "predictions" each example with what the model said of it.

        stemma.evaluate("tuned", "test.tsv")["metrics"]["test"]["accuracy"]
    """
    from stemma.evaluation.evaluate import EvalFile
    from stemma.evaluation.evaluate import evaluate as judge

    asked = as_model(model)
    found, rows = judge(asked, asked.task_config(task), EvalFile(data, file_format, columns, encoding, errors), metrics)
    return {**found, "predictions": rows}


def cloze(model: _model.Model | str | Path, path: str | Path, **options: Any) -> dict[str, Any]:
    """Whether a model knows the missing word (LAMBADA, Children's Book Test): what `stemma cloze --json` prints.

        stemma.cloze("run", "lambada_test.jsonl", limit=500)["accuracy"]
    """
    from stemma.evaluation.cloze import cloze

    return cloze(as_model(model), path, **options)


def prompt(model: _model.Model | str | Path, template: str | Path, data: str | Path, *,
           examples: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Classify, choose or answer by prompting: what `stemma prompt --json` prints, and the answers.

        stemma.prompt("run", "sentiment.toml", "dev.tsv", shots=4, examples="train.tsv")["accuracy"]
    """
    from stemma.evaluation.few_shot import run_few_shot
    from stemma.tasks.prompt_template import load_template, render_examples
    from stemma.text.tables import read_table

    shape = load_template(Path(template))
    rows, pool = (None if file is None else render_examples(shape, read_table(file, shape.columns or None))
                  for file in (data, examples))
    assert rows is not None
    found, answers = run_few_shot(as_model(model), shape, rows, pool, **options)
    return {**found, "predictions": answers}


def finetune(task: str, model: str | Path, train: str | Path, dev: str | Path, out: str | Path, *,
             test: str | Path | None = None, columns: Mapping[str, str] | None = None, metrics: Sequence[str] = (),
             changes: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Teach a model a task from examples: what `stemma finetune TASK --json` prints. `task` is a kind (classify, pair,
    regress, choice, qa, tag, rank) or a data set; for pairs of texts (seq2seq) see `stemma.tasks.seq2seq.finetune`.

        stemma.finetune("classify", "run", "train.tsv", "dev.tsv", "tuned", epochs=3)["metrics"]["dev"]["accuracy"]
    """
    from stemma.tasks.runs.finetune import TaskArguments, finetune

    files = {"train": train, "dev": dev, **({} if test is None else {"test": test})}
    return finetune(TaskArguments(task, files, columns, metrics), model, out, changes=changes, **options)


def _as_paths(given: str | Path | Sequence[str]) -> list[str]:
    return [str(given)] if isinstance(given, str | Path) else [str(path) for path in given]
