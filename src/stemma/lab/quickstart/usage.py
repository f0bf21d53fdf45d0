"""How to use the model that the quickstart made: lines that run as they stand, on the command line and in Python.

Nothing is said of transformers where the model would not open there: a network that is no known family is saved under
Stemma's own model type.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from stemma import registry
from stemma.json_files import read_object
from stemma.text.tokenizer import Tokenizer

PROMPT = "return the {mask} of the list."
TITLES = {"command line": "on the command line", "python": "in Python", "transformers": "in transformers"}


def usage(run: Path, examples: Path) -> dict[str, list[str]]:
    """The lines by where they are used; `examples` is a folder with train.jsonl and test.jsonl."""
    model = run / "model"
    tokenizer = Tokenizer.load(model)
    text = PROMPT.format(mask=tokenizer.id_to_token(tokenizer.special_id("mask")))
    found = {
        "command line": [
            shlex.join(["stemma", "fill", str(run)]) + f' "{text}"',
            shlex.join(["stemma", "finetune", "classify", "--model", str(run), "--train",
                        str(examples / "train.jsonl"), "--dev", str(examples / "test.jsonl"), "--out", "tuned"])],
        "python": [
            "import stemma",
            f"model = stemma.load({_quoted(run)})",
            f"print(stemma.fill(model, {_quoted(text)}, top=3))"]}
    if opens_in_transformers(model):
        found["transformers"] = [
            "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline",
            f"model = AutoModelForMaskedLM.from_pretrained({_quoted(model)})",
            f"tokenizer = AutoTokenizer.from_pretrained({_quoted(model)})",
            f'print(pipeline("fill-mask", model=model, tokenizer=tokenizer)({_quoted(text)}))']
    return found


def opens_in_transformers(model: Path) -> bool:
    told = read_object(model / "config.json", "make the quickstart again.")
    return told.get("model_type") in registry.BUILT_IN["family"]


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)
