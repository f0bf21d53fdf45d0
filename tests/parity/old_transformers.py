"""Outputs of Transformer-XL in transformers 4.35.2, in an environment of its own: later releases dropped the family.

    python old_transformers.py environment FOLDER                      create (or reuse) the environment
    FOLDER/bin/python old_transformers.py references CASES.json OUT    tiny random models and their outputs
    FOLDER/bin/python old_transformers.py read MODEL IDS OUT           the outputs of a saved Stemma model

A case is {"name", "seed", "config": {...}, "rows", "segments": [lengths], "start": "zeros" or "empty"}. For each case
OUT gets NAME/model (save_pretrained, safetensors), NAME/model_bin (the same as pytorch_model.bin, the layout of the
released checkpoint), NAME/info.json with the number of parameters, and NAME/outputs.safetensors: for segment s `s.ids`,
`s.hidden`, `s.log_probabilities`, and `s.memory` (layers, rows, positions, width) after the segment.
OUT/published.json has the size, settings and tensor shapes of the published WikiText-103 model, which is built without
memory. `read` loads MODEL, runs the segments 0, 1, ... of the file IDS, and writes `s.log_probabilities` and `s.hidden`
to OUT.safetensors, and missing or unexpected keys to OUT.json.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

VERSION = "4.35.2"
# The compiled dependencies of that time have no builds for newer Pythons; the newest supported numpy is 1.26.
NEEDED = [f"transformers=={VERSION}", "huggingface_hub<0.18", "tokenizers<0.16", "safetensors>=0.4", "numpy<2"]


def environment(folder: Path) -> Path:
    """The interpreter of an environment with the old version. It uses torch (200 MB) of the running environment."""
    python, ready = folder / "bin/python", folder / ".ready"
    if ready.exists():
        return python
    import torch

    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDED], check=True)
    packages = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                              capture_output=True, text=True).stdout.strip()
    # A .pth folder comes last on the path: only packages that the environment lacks are imported from it.
    (Path(packages) / "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    subprocess.run([python, "-c", f"import transformers as t; assert t.__version__ == '{VERSION}'; t.TransfoXLModel"],
                   check=True)
    ready.touch()
    return python


def references(python: Path, cases: list[dict[str, Any]], out: Path) -> None:
    """Run this file in the old environment."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "cases.json").write_text(json.dumps(cases))
    subprocess.run([python, "-W", "ignore", __file__, "references", out / "cases.json", out], check=True)


def read(python: Path, model: Path, ids: Path, out: Path) -> dict[str, Any]:
    """Run this file in the old environment; returns its loading info."""
    subprocess.run([python, "-W", "ignore", __file__, "read", model, ids, out], check=True)
    return json.loads(out.with_suffix(".json").read_text())


def write_outputs(folder: Path, ids: Path, out: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    model, loading_info = transformers.TransfoXLLMHeadModel.from_pretrained(folder, output_loading_info=True)
    segments, memory, outputs = load_file(ids), None, {}
    with torch.no_grad():
        for index in range(len(segments)):
            result = model.eval()(segments[str(index)], mems=memory, output_hidden_states=True)
            memory = result.mems
            outputs |= {f"{index}.hidden": result.hidden_states[-1].contiguous(),
                        f"{index}.log_probabilities": result.prediction_scores.contiguous()}
    save_file(outputs, out.with_suffix(".safetensors"))
    loading_info |= {"parameters": model.num_parameters(), "eos_token_id": model.config.eos_token_id}
    out.with_suffix(".json").write_text(json.dumps(loading_info))


def write_reference(case: dict[str, Any], out: Path) -> None:
    import torch
    from safetensors.torch import save_file

    transformers: Any = importlib.import_module("transformers")  # 4.35.2, which type checkers here do not know
    generator = torch.Generator().manual_seed(case["seed"])
    torch.manual_seed(case["seed"])
    model = transformers.TransfoXLLMHeadModel(transformers.TransfoXLConfig(**case["config"])).eval()
    config, rows = model.config, case["rows"]
    outputs: dict[str, Any] = {}
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 and norms of 1 would hide a swapped tensor
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        memory = None  # the default of transformers: zeros of full length
        if case["start"] == "empty":
            memory = [torch.zeros(0, rows, config.d_model) for _ in range(config.n_layer)]
        for index, length in enumerate(case["segments"]):
            ids = torch.randint(config.vocab_size, (rows, length), generator=generator)
            result = model(ids, mems=memory, output_hidden_states=True)
            memory = result.mems
            outputs |= {f"{index}.ids": ids, f"{index}.hidden": result.hidden_states[-1],
                        f"{index}.log_probabilities": result.prediction_scores}
            if memory is not None:
                outputs[f"{index}.memory"] = torch.stack(list(memory)).transpose(1, 2).contiguous()
    folder = out / case["name"]
    model.save_pretrained(folder / "model")
    model.save_pretrained(folder / "model_bin", safe_serialization=False)
    save_file({name: value.clone() for name, value in outputs.items()}, folder / "outputs.safetensors")
    (folder / "info.json").write_text(json.dumps({"parameters": model.num_parameters()}))


def published() -> dict[str, Any]:
    import torch

    transformers: Any = importlib.import_module("transformers")
    with torch.device("meta"):  # shapes without memory; the defaults are the published settings
        model = transformers.TransfoXLLMHeadModel(transformers.TransfoXLConfig())
    return {"parameters": model.num_parameters(), "config": model.config.to_dict(),
            "tensors": {name: list(value.shape) for name, value in model.state_dict().items()}}


def main() -> None:
    warnings.simplefilter("ignore")
    if sys.argv[1] == "environment":
        print(environment(Path(sys.argv[2])))
        return
    if sys.argv[1] == "read":
        write_outputs(*map(Path, sys.argv[2:]))
        return
    cases, out = json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    for case in cases:
        write_reference(case, out)
    (out / "published.json").write_text(json.dumps(published(), indent=1))


if __name__ == "__main__":
    main()
