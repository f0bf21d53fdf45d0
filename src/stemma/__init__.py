"""Stemma: a workbench for pre-trained language models. A model is a recipe; a recipe is its changes to a parent.

    import stemma
    model = stemma.load("run")                       # a run folder, its model/, or a Hugging Face folder
    model.fill("the [MASK] of the list")             # also generate, stream, embed, score, predict, translate
    model.logits(input_ids)
    stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000)
    stemma.finetune("classify", "run", "train.tsv", "dev.tsv", "tuned")

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Module of each public name: "module", or "module:name there". Every command has a function of the same name.
_HOMES = {
    "Model": "stemma.api:InferenceModel", "Recipe": "stemma.recipe_loading", "UserError": "stemma.errors",
    "Callback": "stemma.training.callbacks",
    "load": "stemma.api", "build": "stemma.api", "save": "stemma.exchange.save", "recipe": "stemma.recipe_loading",
    "tree": "stemma.recipe_loading:list_recipes", "show": "stemma.recipe_loading:recipe",
    "diff": "stemma.recipe_loading",
    "clean": "stemma.text.cleaning.clean", "train_tokenizer": "stemma.text.train_tokenizer",
    "build_corpus": "stemma.corpus.build", "annotate": "stemma.corpus.annotate", "overlap": "stemma.corpus.overlap",
    "inspect": "stemma.training.preview", "pretrain": "stemma.training.pretrain", "average": "stemma.training.average",
    "resume": "stemma.tasks.runs.common", "finetune": "stemma.api", "multitask": "stemma.tasks.runs.multitask",
    "pipeline": "stemma.tasks.pipeline.pipeline",
    "fill": "stemma.generation.fill", "generate": "stemma.generation.generate",
    "stream": "stemma.generation.generate", "translate": "stemma.generation.translate", "embed": "stemma.api",
    "predict": "stemma.api", "evaluate": "stemma.api", "perplexity": "stemma.api", "cloze": "stemma.api",
    "prompt": "stemma.api", "pairs": "stemma.api", "senses": "stemma.api", "export": "stemma.api",
    "convert": "stemma.exchange.export", "neighbours": "stemma.api", "analogy": "stemma.api",
    "similarity": "stemma.api",
    "compare": "stemma.lab.comparison", "ablate": "stemma.lab.comparison",
    "cost": "stemma.lab.cost", "layer_cost": "stemma.lab.layer_cost",
    "quickstart": "stemma.lab.quickstart.quickstart",
    "use_plugin": "stemma.plugins", "__version__": "stemma.version:VERSION",
}
__all__ = ["Callback", "Model", "Recipe", "UserError", "ablate", "analogy", "annotate", "average", "build",
           "build_corpus", "clean", "cloze", "compare", "convert", "cost", "diff", "embed", "evaluate", "export",
           "fill", "finetune", "generate", "inspect", "layer_cost", "load", "multitask", "neighbours", "overlap",
           "pairs", "perplexity", "pipeline", "predict", "pretrain", "prompt", "quickstart", "recipe", "resume", "save",
           "senses", "show", "similarity", "stream", "train_tokenizer", "translate", "tree", "use_plugin"]

if TYPE_CHECKING:
    from stemma.api import InferenceModel as Model
    from stemma.api import (
        analogy,
        build,
        cloze,
        embed,
        evaluate,
        export,
        finetune,
        load,
        neighbours,
        pairs,
        perplexity,
        predict,
        prompt,
        senses,
        similarity,
    )
    from stemma.corpus.annotate import annotate
    from stemma.corpus.build import build_corpus
    from stemma.corpus.overlap import overlap
    from stemma.errors import UserError
    from stemma.exchange.export import convert
    from stemma.exchange.save import save
    from stemma.generation.fill import fill
    from stemma.generation.generate import generate, stream
    from stemma.generation.translate import translate
    from stemma.lab.comparison import ablate, compare
    from stemma.lab.cost import cost
    from stemma.lab.layer_cost import layer_cost
    from stemma.lab.quickstart.quickstart import quickstart
    from stemma.plugins import use_plugin
    from stemma.recipe_loading import Recipe, diff, recipe
    from stemma.recipe_loading import list_recipes as tree
    from stemma.recipe_loading import recipe as show
    from stemma.tasks.pipeline.pipeline import pipeline
    from stemma.tasks.runs.common import resume
    from stemma.tasks.runs.multitask import multitask
    from stemma.text.cleaning.clean import clean
    from stemma.text.train_tokenizer import train_tokenizer
    from stemma.training.average import average
    from stemma.training.callbacks import Callback
    from stemma.training.pretrain import pretrain
    from stemma.training.preview import inspect

    __version__: str


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stemma' has no attribute {name!r}")
    import importlib

    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
