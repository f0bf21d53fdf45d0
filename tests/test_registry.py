"""The registry: built-in kinds, and parts that users register."""

import re
from pathlib import Path
from typing import get_args

import pytest

import stemma
from stemma import registry
from stemma.errors import UserError
from stemma.registry import BUILT_IN, register
from stemma.schema.base import Settings
from stemma.schema.task_options import parse_task_options

ROOT = Path(stemma.__file__).parent


@pytest.fixture
def restored_registry(monkeypatch):
    """Restores the registry after a test."""
    for slot in BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("slot", BUILT_IN)
def test_every_kind_is_registered_by_the_module_listed_for_it(slot):
    for entry in registry.entries(slot):
        assert entry.module == BUILT_IN[slot][entry.kind]
        if entry.settings is not None:
            assert issubclass(entry.settings, registry.settings_base(slot))
            if "kind" in registry.settings_base(slot).model_fields:
                assert get_args(entry.settings.model_fields["kind"].annotation) == (entry.kind,)


@pytest.mark.parametrize("slot", BUILT_IN)
def test_every_registration_in_the_code_is_listed(slot):
    registered = {kind for file in ROOT.rglob("*.py") if file.name not in ("registry.py", "extend.py")
               for kind in re.findall(rf'@register\("{slot}", "([^"]+)"', file.read_text())}
    assert registered == set(BUILT_IN[slot])


def test_settings_of_an_objective_get_the_common_keys(restored_registry):
    class ReverseSettings(Settings):
        rate: float = 0.15

    @register("objective", "reverse", ReverseSettings)
    class Reverse:
        predicts_tokens = True

    task = stemma.recipe("bert@tiny", ["objective.reverse.rate=0.2", "objective.reverse.weight=2"]).settings.objective[
        "reverse"]
    assert (task.kind, task.rate, task.weight, task.attention_mask_kind, task.allowed_packings) == ("reverse", 0.2,
                                                                                                    2.0, "full", ())
    assert task.generation is None and not task.predicts_bidirectionally and not task.rearranges_text
    with pytest.raises(UserError, match="objective.reverse.rat") as caught:
        stemma.recipe("bert@tiny", ["objective.reverse.rat=0.2"])
    assert 'Did you mean "objective.reverse.rate"?' in str(caught.value.problems)


def test_a_part_may_have_no_settings(restored_registry):
    @register("schedule", "level")
    def level(settings, at):
        return 1.0

    recipe = stemma.recipe("bert@tiny", ["training.schedule.kind=level"])
    assert recipe.values["training"]["schedule"] == {"kind": "level"}


def test_a_kind_that_is_already_registered_is_rejected(restored_registry):
    with pytest.raises(UserError, match='the objective "masked_lm" is registered already, by stemma.objectives.mask'):
        @register("objective", "masked_lm")
        class Mine:
            pass

    @register("schedule", "mine")
    def mine(settings, at):
        return 1.0

    mine.__module__ = "elsewhere"
    with pytest.raises(UserError, match='the schedule "mine" is registered already, by test_registry'):
        register("schedule", "mine")(mine)


def test_an_unknown_slot_is_rejected():
    with pytest.raises(UserError, match='no slot "objectiv".*Did you mean "objective"'):
        register("objectiv", "mine")


def test_an_unknown_kind_is_reported_with_the_nearest():
    with pytest.raises(UserError, match='no objective "maskedlm". Did you mean "masked_lm"'):
        registry.get("objective", "maskedlm")
    with pytest.raises(UserError) as caught:
        stemma.recipe("bert@tiny", ["objective.mine.kind=masked"])
    assert "must be one of masked_lm, next_sentence" in str(caught.value.problems)


def test_attention_that_lacks_a_required_feature_is_rejected_before_the_network_is_built(restored_registry):
    from stemma.schema.parts import AttentionSettings

    class LinearSettings(AttentionSettings):
        pass

    register("attention", "linear", LinearSettings)(lambda network: None)
    linear = ["network.attention.kind=linear", "network.attention.dropout=0"]
    assert stemma.recipe("bert@tiny", linear).settings.network.attention.kind == "linear"
    for name, key, expected in (
            ("gpt2@tiny", "network.attention.kind", "cannot be causal, which objective.causal_lm needs"),
            ("prefix-lm@tiny", "network.attention.kind", "takes no attention mask of its own"),
            ("t5@tiny", "network.attention.kind", "has no scores to which a bias could be added, which "
                                                  "network.position.kind needs"),
            ("modernbert@tiny", "network.attention.kind", "does not rotate queries and keys"),
            ("bart@tiny", "network.attention.kind", "cannot be causal, which network.decoder needs")):
        with pytest.raises(UserError) as caught:
            stemma.recipe(name, linear)
        assert any(reported.startswith(key) and expected in message for reported, message in caught.value.problems), \
            caught.value.problems
    with pytest.raises(UserError, match="network.transition") as caught:
        stemma.recipe("bert@tiny", ["network.transition=gatd"])
    assert 'Did you mean "gated"?' in str(caught.value.problems)


def test_a_task_config_with_a_registered_head_is_stored_and_read_back(restored_registry):
    from dataclasses import dataclass

    from stemma.task_config import TaskConfig

    @register("head", "PlainHead")
    @dataclass(frozen=True)
    class PlainHead:
        classes: int

        def build(self, settings, embedding):
            from torch import nn

            return nn.Linear(settings.width, self.classes)

    task_config = TaskConfig("task", "classify", ("a", "b"), {"task": PlainHead(2)}, "start A separator",
                             "start A separator B separator", 16, ("accuracy",), parse_task_options("classify", {}))
    assert TaskConfig.from_json(task_config.to_json()) == task_config
