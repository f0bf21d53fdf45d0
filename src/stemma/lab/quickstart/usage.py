"""Usage examples for the quickstart's model, on the command line and in Python. They run unchanged.

There is one for transformers only if it can load the model: other networks are saved under Stemma's own model type.
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
    """The lines by interface; `examples` is a folder with train.jsonl and test.jsonl."""
    model = run / "model"
    tokenizer = Tokenizer.load(model)
    text = PROMPT.format(mask=tokenizer.id_to_token(tokenizer.special_id("mask")))
    lines = {
        "command line": [
            shlex.join(["stemma", "fill", str(run)]) + f' "{text}"',
            shlex.join(["stemma", "finetune", "classify", "--model", str(run), "--train",
                        str(examples / "train.jsonl"), "--dev", str(examples / "test.jsonl"), "--out", "tuned"])],
        "python": [
            "import stemma",
            f"model = stemma.load({_quoted(run)})",
            f"print(stemma.fill(model, {_quoted(text)}, top=3))"]}
    if opens_in_transformers(model):
        lines["transformers"] = [
            "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline",
            f"model = AutoModelForMaskedLM.from_pretrained({_quoted(model)})",
            f"tokenizer = AutoTokenizer.from_pretrained({_quoted(model)})",
            f'print(pipeline("fill-mask", model=model, tokenizer=tokenizer)({_quoted(text)}))']
    return lines


def opens_in_transformers(model: Path) -> bool:
    config = read_object(model / "config.json", "make the quickstart again.")
    return config.get("model_type") in registry.BUILT_IN["family"]


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)
