"""Exact resume and bf16 training of the parts of modern recipes."""

from __future__ import annotations

import json
import math
import shutil

import pytest
from safetensors.torch import load_file

from stemma.training.pretrain import pretrain, resume

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=48",
         "corpus.sequence_length=24", "training.batch_size=4", "training.warmup_steps=2", "training.checkpoint_every=1",
         "training.keep_checkpoints=100", "training.log_every=1", "training.validate_every=3"]
STEPS = 5
TOGETHER = ["training.ema=0.9", "training.z_loss=1e-3", "training.batch_schedule.start=0.5", "network.activation=relu2",
            "network.norm.kind=rms", "network.norm.placement=pre", "network.norm.epsilon=1e-6",
            "network.attention.qk_norm=after", "network.attention.gate=true", "network.mix=true",
            "network.embedding.logit_softcap=15.0", "network.embedding.tied=false",
            "training.optimizer={kind='stable_adamw'}"]
PARTS = {
    "moving average": ("roberta", ["training.ema=0.9"]),
    "moving average, best weights": ("roberta", ["training.ema=0.9", "training.keep_best=true"]),
    "z-loss": ("roberta", ["training.z_loss=1e-2"]),
    "schedules": ("roberta", ["training.batch_schedule.start=0.25", "objective.masked_lm.rate=0.5",
                              "objective.masked_lm.final_rate=0.15"]),
    "squared relu": ("roberta", ["network.activation=relu2"]),
    "rms norm": ("roberta", ["network.norm.kind=rms", "network.norm.placement=pre", "network.norm.epsilon=1e-6"]),
    "qk-norm": ("roberta", ["network.attention.qk_norm=before", "network.attention.qk_norm_weight=true"]),
    "disentangled positions": ("ltg-bert", []),
    "gates, learned mix, masked next token": ("gpt-bert", ["objective.masked_lm.sampling_weight=1"]),
    "adaptive masking": ("modernbert", ["objective.masked_lm.adaptive=true",
                                        "objective.masked_lm.adaptive_interval=2"]),
    "adaptive masking of a generator, within an interval": ("electra", ["objective.masked_lm.adaptive=true",
                                                                        "objective.masked_lm.adaptive_interval=3"]),
    "masked diffusion": ("mdlm", []),
    "swiglu, all masks": ("neobert", []),
    "masked and causal batches, schedules": ("gpt-bert", ["objective.masked_lm.sampling_weight=1",
                                                          "objective.masked_lm.adaptive=true",
                                                          "objective.masked_lm.unit=token",
                                                          "objective.masked_lm.replace_whole_units=false",
                                                          "objective.masked_lm.adaptive_interval=2"]),
    "together, masked": ("roberta", TOGETHER),
    "together, causal": ("gpt2", TOGETHER),
    "together, encoder-decoder": ("t5", [*TOGETHER, "network.decoder.layers=2", "network.attention.head_width=16"]),
    "embedding learning rate": ("nanochat", ["training.optimizer.embedding_learning_rate=0.3"]),
    "stable adamw": ("modernbert", ["training.optimizer.kind=stable_adamw", "training.learning_rate=1e-3",
                                    "remove=training.optimizer.adamw_learning_rate"]),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("part", PARTS)
def test_a_resumed_run_ends_with_the_same_bytes(corpus_folder, tmp_path, part, precision):
    name, changes = PARTS[part]
    whole, run = tmp_path / "whole", tmp_path / "run"
    pretrain(f"{name}@tiny", corpus_folder, whole, steps=STEPS,
             changes=[*SMALL, *changes, f"training.precision={precision}"])
    expected = json.loads((whole / "result.json").read_text())
    assert math.isfinite(expected["loss"]) and math.isfinite(expected["validation_loss"])
    start, end = (load_file(whole / f"checkpoints/step-{step}/weights.safetensors") for step in (1, STEPS))
    unchanged = [key for key, tensor in end.items() if tensor.is_floating_point() and tensor.equal(start[key])]
    assert len(unchanged) < len(end) / 4  # some scales start at zero and move later
    shutil.copytree(whole, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    for later in range(3, STEPS + 1):
        shutil.rmtree(run / f"checkpoints/step-{later}")
    result = resume(run)
    model = "model/model.safetensors"
    assert (run / model).read_bytes() == (whole / model).read_bytes()
    assert {key: result[key] for key in ("loss", "validation_loss", "tokens")} == \
        {key: expected[key] for key in ("loss", "validation_loss", "tokens")}
