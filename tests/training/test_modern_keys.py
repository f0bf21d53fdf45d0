"""The keys of modern parts: wrong values and combinations are refused before anything is trained."""

from __future__ import annotations

import pytest

from stemma.errors import UserError
from stemma.recipe_loading import recipe


@pytest.mark.parametrize("change", [
    "training.ema=1", "training.ema=0", "training.ema=-0.5", "training.z_loss=0", "training.z_loss=-1e-4",
    "training.batch_schedule.start=0", "training.batch_schedule.start=1.5", "training.batch_schedule.growth=2",
    "network.activation=relu3", "network.norm.kind=rmsnorm2", "network.attention.qk_norm=between", "network.mix=3",
    "network.embedding.logit_softcap=0", "network.embedding.tied=perhaps", "training.optimizer.kind=stable_adam",
    "objective.causal_lm.final_rate=0.1"])
@pytest.mark.parametrize("name", ["gpt2", "ettin-decoder"])
def test_wrong_values_are_refused(name, change):
    with pytest.raises(UserError) as error:
        recipe(f"{name}@tiny", [change])
    key = change.partition("=")[0]
    assert any(key in where or where in key for where, _ in error.value.problems), str(error.value)


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("bert", ["network.mix=true"], "network.norm.placement=pre"),
    ("xlnet", ["network.mix=true", "network.norm.placement=pre"], "network.embedding.query"),
    ("transformer-xl", ["training.batch_schedule.start=0.5"], "the batch size cannot change"),
    ("bert", ["objective.masked_lm.final_rate=0.1"], "dynamic=true"),
    ("roberta", ["objective.masked_lm.final_rate=0"], "must"),
    ("roberta", ["objective.masked_lm.adaptive_decay=1"], "must"),
    ("gpt2", ["network.attention.qk_norm_weight=true"], "qk_norm"),
    ("gpt2", ["network.head.dropout=0.5"], "network.head.dropout")])
def test_what_does_not_combine_is_refused(name, changes, message):
    with pytest.raises(UserError, match="problem") as error:
        recipe(f"{name}@tiny", changes)
    assert message in str(error.value)
