"""The Python API: a model with methods, and a function for each command that takes files.

    model = stemma.load("run")
    model.fill("the [MASK] of the list")
    model.generate("Once upon a time", tokens=40, seed=1)[0].text

Each method and function calls the same code as the command of its name. None of them changes the model, so several
threads may share one.
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
    from stemma.tasks.embed import TokenVectors
    from stemma.vectors.word_vectors import WordVectors

PredictRows = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | Path


class InferenceModel(_model.Model):
    """A model for inference: `recipe`, `tokenizer` and `network`. `hidden` and `logits` return tensors; the methods
    below work on text."""

    def fill(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """For each [MASK] of the text, the most probable tokens with their probabilities."""
        from stemma.generation.fill import fill

        return fill(self, text, top)

    def generate(self, prompts: str | Sequence[str | Sequence[int]], **options: Any) -> list[Completion]:
        """Completions of each prompt. `options`: tokens, greedy, temperature, top_k, top_p, beams, completions, seed
        and the other fields of `stemma.generation.options.GenerationOptions`."""
        from stemma.generation.generate import generate

        return generate(self, prompts, **options)

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[str]:
        """The completion of one prompt, as an iterator over pieces of text; `options` as for `generate`."""
        from stemma.generation.generate import stream

        return stream(self, prompt, **options)

    def embed(self, texts: str | Sequence[str], pooling: str = "mean", normalize: bool = False,
              inputs: Mapping[str, Sequence[Any]] | None = None, layer: str | int | None = None) -> np.ndarray:
        """(texts, width): one vector for each text, the mean over its tokens or the vector of its first position.
        `inputs`: the other inputs of the network, by name a list with an array (tokens, ...) for each text. `layer`: 0
        is the embedding, -1 the last layer (None too), "static" the token embedding before positions, "mean" the mean
        of all layers; "all" gives (texts, layers, width)."""
        from stemma.tasks.embed import embed

        return embed(self, [texts] if isinstance(texts, str) else texts, pooling, normalize, inputs, layer)

    def embed_tokens(self, texts: Sequence[str], layer: str | int | None = None) -> list[TokenVectors]:
        """The tokens of each text, their offsets, and a vector for each: what `stemma embed --tokens` writes."""
        from stemma.tasks.embed import embed_tokens

        return embed_tokens(self, texts, layer)

    def score(self, texts: str | Sequence[str], after: str | Sequence[str] = "") -> list[ContinuationScore]:
        """The log-probability (in nats) of each text after another, and whether greedy decoding generates it. Without
        `after`, as the beginning of a text."""
        from stemma.evaluation.likelihood import score_continuations

        continuations = [texts] if isinstance(texts, str) else list(texts)
        contexts = [after] * len(continuations) if isinstance(after, str) else list(after)
        return score_continuations(self, contexts, continuations)

    def predict(self, rows: PredictRows, task: str | None = None) -> list[dict[str, Any]]:
        """The predictions of a fine-tuned model. A row is a text, or a dictionary with the columns of a table."""
        from stemma.tasks.predict import predict

        return predict(self, rows, task)

    def translate(self, lines: str | Sequence[str], **options: Any) -> list[TranslationResult]:
        """A translation of each line. `options` are the fields of `stemma.generation.options.TranslationOptions`."""
        from stemma.generation.translate import translate

        return translate(self, lines, **options)


def load(name_or_path: str | Path, device: str | None = None) -> InferenceModel:
    """Load a model from a run folder, its model/, a Hugging Face folder, or (with the extra `hub`) a hub id, in eval
    mode and fp32. `device`: cpu, cuda, cuda:N, mps, or auto (the default): CUDA if available."""
    return _as_inference_model(_load.open_model(name_or_path, choose_device(device)))


def build(name: str | Recipe, vocab_size: int | None = None, changes: Sequence[str] = (),
          device: str = "cpu") -> InferenceModel:
    """A model of a recipe with random weights. `vocab_size` None: the published one. Weights come from torch's global
    random generator: seed it for reproducible weights."""
    model = _as_inference_model(_build.build(name, vocab_size, changes))
    if not any(parameter.is_meta for parameter in model.network.parameters()):  # meta: only shapes, nothing to move
        model.network.to(choose_device(device))
    return model


def _as_inference_model(model: _model.Model) -> InferenceModel:
    return InferenceModel(**{field.name: getattr(model, field.name) for field in fields(model)})


def as_model(model: _model.Model | str | Path) -> _model.Model:
    """The model itself, or the model in this folder."""
    return model if isinstance(model, _model.Model) else load(model)


def predict(model: _model.Model | str | Path, rows: PredictRows, task: str | None = None) -> list[dict[str, Any]]:
    """The predictions of a fine-tuned model, in order: what `stemma predict` prints.

        stemma.predict("tuned", ["a good film", "a dull one"])[0]["label"]
        stemma.predict("tuned", pathlib.Path("reviews.tsv"))

    A row is a text, or a dictionary with the columns of a table; a `Path` is a file, read as by the command.
    """
    from stemma.tasks.predict import predict

    return predict(as_model(model), rows, task)


def embed(model: _model.Model | str | Path, texts: Sequence[str], pooling: str = "mean", normalize: bool = False,
          inputs: Mapping[str, Sequence[Any]] | None = None, layer: str | int | None = None) -> np.ndarray:
    """One vector for each text, as `stemma embed` writes them: (texts, width), or (texts, layers, width) for layer
    "all".

        stemma.embed("run", ["a sentence", "another"], layer=1).shape
    """
    from stemma.tasks.embed import embed

    return embed(as_model(model), texts, pooling, normalize, inputs, layer)


def perplexity(model: _model.Model | str | Path, paths: str | Path | Sequence[str], *, length: int | None = None,
               stride: int | None = None, memory: int | None = None, by_document: bool = False,
               samples: int | None = None, documents: str = "blank", field: str = "text",
               encoding: str = "utf-8", errors: str = "strict") -> dict[str, Any]:
    """Perplexity of a language model on text files: what `stemma perplexity --json` prints.

        stemma.perplexity("run", "held-out.txt", stride=64)["bits_per_byte"]
    """
    from stemma.evaluation.perplexity import perplexity
    from stemma.text.readers import read_passages

    passages = read_passages(_as_paths(paths), documents=documents, field=field, encoding=encoding, errors=errors)
    return perplexity(as_model(model), passages, length, stride, memory, by_document, samples)


def evaluate(model: _model.Model | str | Path, data: str | Path, *, task: str | None = None,
             file_format: str | None = None, columns: Mapping[str, str] | None = None, metrics: Sequence[str] = (),
             encoding: str = "utf-8", errors: str = "strict", baseline: bool = True) -> dict[str, Any]:
    """Evaluate a fine-tuned model on a file with gold answers: what `stemma evaluate --json` prints, and under
    "predictions" each example with its prediction. `baseline`: for a run folder, also fit the linear baseline.

        stemma.evaluate("tuned", "test.tsv")["metrics"]["test"]["accuracy"]
    """
    from stemma.evaluation.evaluate import EvalFile, evaluate

    loaded = as_model(model)
    file = EvalFile(data, file_format, columns, encoding, errors)
    run = Path(model) if baseline and not isinstance(model, _model.Model) else None
    result, predictions = evaluate(loaded, loaded.task_config(task), file, metrics, run)
    return {**result, "predictions": predictions}


def cloze(model: _model.Model | str | Path, path: str | Path, **options: Any) -> dict[str, Any]:
    """Cloze accuracy of a model (LAMBADA, Children's Book Test): what `stemma cloze --json` prints.

        stemma.cloze("run", "lambada_test.jsonl", limit=500)["accuracy"]
    """
    from stemma.evaluation.cloze import cloze

    return cloze(as_model(model), path, **options)


def pairs(model: _model.Model | str | Path, path: str | Path, *, limit: int | None = None, scoring: str | None = None,
          revisions: bool = False) -> dict[str, Any]:
    """Accuracy on minimal pairs (BLiMP), by phenomenon and field: what `stemma pairs --json` prints.

        stemma.pairs("run", "blimp", limit=100)["accuracy"]
    """
    from stemma.evaluation.minimal_pairs import read_pairs
    from stemma.evaluation.revision_curve import score_models

    name = model.recipe.label if isinstance(model, _model.Model) else str(model)
    return {"model": name, "data": str(path), **score_models(model, read_pairs(path, limit), scoring, revisions)}


def senses(models: _model.Model | str | Path | Sequence[_model.Model | str | Path], word: str, path: str | Path,
           **options: Any) -> dict[str, Any]:
    """The nearest contexts of an ambiguous word: what `stemma senses --json` prints. `options`: layers (as of `embed`),
    neighbours, limit, match_case, encoding and errors.

        stemma.senses("run", "bank", "sentences.tsv", layers=["static", -1])["models"][1]["same_sense"]
    """
    from stemma.evaluation.senses import senses

    single = isinstance(models, _model.Model | str | Path)
    return senses([models] if single else list(models), word, path, **options)  # type: ignore[list-item,arg-type]


def export(model: _model.Model | str | Path, format: str, out: str | Path, *,
           overwrite: bool = False) -> dict[str, Any]:
    """Write a model in a format of other programs: what `stemma export --json` prints.

        stemma.export("run", "arpa", "lm.arpa")
    """
    from stemma.exchange.export import export

    return export(as_model(model), format, out, overwrite)


def neighbours(vectors: _model.Model | str | Path, words: str | Sequence[str], *,
               top: int = 10) -> dict[str, list[dict[str, Any]]]:
    """The words with the most similar vectors, by word: what `stemma neighbours --json` prints. `vectors`: a vector
    file, or a model, whose input embedding is used.

        stemma.neighbours("vectors.txt", "king")["king"][0]["word"]
    """
    opened = _as_vectors(vectors)
    return {word: [neighbor._asdict() for neighbor in opened.neighbors(word, top)]
            for word in ([words] if isinstance(words, str) else words)}


def analogy(vectors: _model.Model | str | Path, questions: str | Path, *, limit: int | None = None) -> dict[str, Any]:
    """Accuracy on analogies in Google's file format, by section: what `stemma analogy --json` prints.

        stemma.analogy("vectors.txt", "questions-words.txt")["accuracy"]
    """
    from stemma.vectors.questions import analogy_accuracy, read_questions

    return analogy_accuracy(_as_vectors(vectors), read_questions(questions), limit)


def similarity(vectors: _model.Model | str | Path, pairs: str | Path) -> dict[str, Any]:
    """Spearman's correlation with similarity judgements: what `stemma similarity --json` prints.

        stemma.similarity("vectors.txt", "wordsim353.tsv")["spearman"]
    """
    from stemma.vectors.questions import read_pairs, similarity_scores

    return similarity_scores(_as_vectors(vectors), read_pairs(pairs))


def _as_vectors(vectors: _model.Model | str | Path) -> WordVectors:
    from stemma.exchange.vectors import model_vectors, open_vectors

    return model_vectors(vectors) if isinstance(vectors, _model.Model) else open_vectors(vectors)


def prompt(model: _model.Model | str | Path, template: str | Path, data: str | Path, *,
           examples: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Classify, choose or answer by prompting: what `stemma prompt --json` prints, and the predictions.

        stemma.prompt("run", "sentiment.toml", "dev.tsv", shots=4, examples="train.tsv")["accuracy"]
    """
    from stemma.evaluation.few_shot import run_few_shot
    from stemma.tasks.prompt_template import load_template, render_examples
    from stemma.text.tables import read_table

    parsed = load_template(Path(template))
    rows, pool = (None if file is None else render_examples(parsed, read_table(file, parsed.columns or None))
                  for file in (data, examples))
    assert rows is not None
    result, predictions = run_few_shot(as_model(model), parsed, rows, pool, **options)
    return {**result, "predictions": predictions}


def finetune(task: str, model: str | Path, train: str | Path, dev: str | Path, out: str | Path, *,
             test: str | Path | None = None, columns: Mapping[str, str] | None = None, metrics: Sequence[str] = (),
             changes: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Fine-tune a model on a task: what `stemma finetune TASK --json` prints. `task` is a kind (classify, pair,
    regress, choice, qa, tag, rank) or a data set.

        stemma.finetune("classify", "run", "train.tsv", "dev.tsv", "tuned", epochs=3)["metrics"]["dev"]["accuracy"]
    """
    from stemma.tasks.runs.finetune import TaskArguments, finetune

    files = {"train": train, "dev": dev, **({} if test is None else {"test": test})}
    return finetune(TaskArguments(task, files, columns, metrics), model, out, changes=changes, **options)


def _as_paths(paths: str | Path | Sequence[str]) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]
