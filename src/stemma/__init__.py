"""Stemma: a workbench for pre-trained language models, where a model is a recipe and a recipe is what it changed.

    import stemma
    model = stemma.load("run")                       # a run folder, its model/, or a Hugging Face folder
    model.logits(input_ids)
    stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000)
    stemma.generate(model, "Once upon a time", tokens=40, seed=1)[0].text
    stemma.translate("run", "A man rides a horse.")[0].text

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "Recipe", "UserError", "build", "fill", "generate", "load", "pretrain", "recipe", "resume", "save",
           "stream", "translate", "use_plugin"]

_HOMES = {"Model": "stemma.exchange.model", "load": "stemma.exchange.load", "save": "stemma.exchange.save",
          "build": "stemma.exchange.build", "Recipe": "stemma.lineage", "recipe": "stemma.lineage",
          "UserError": "stemma.errors", "pretrain": "stemma.training.pretrain", "resume": "stemma.tasks.finetune",
          "fill": "stemma.generation.fill", "generate": "stemma.generation.generate",
          "stream": "stemma.generation.generate", "translate": "stemma.generation.translate",
          "use_plugin": "stemma.plugins"}

if TYPE_CHECKING:
    from stemma.errors import UserError
    from stemma.exchange.build import build
    from stemma.exchange.load import load
    from stemma.exchange.model import Model
    from stemma.exchange.save import save
    from stemma.generation.fill import fill
    from stemma.generation.generate import generate, stream
    from stemma.generation.translate import translate
    from stemma.lineage import Recipe, recipe
    from stemma.plugins import use_plugin
    from stemma.tasks.finetune import resume
    from stemma.training.pretrain import pretrain


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stemma' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
