"""What is registered, and what a user's own part has to say of itself."""

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
def own(monkeypatch):
    """Whatever a test registers is forgotten after it."""
    for slot in BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("slot", BUILT_IN)
def test_every_kind_is_registered_by_the_module_that_is_listed(slot):
    for entry in registry.entries(slot):
        assert entry.module == BUILT_IN[slot][entry.kind]
        if entry.settings is not None:
            assert issubclass(entry.settings, registry.settings_base(slot))
            if "kind" in registry.settings_base(slot).model_fields:
                assert get_args(entry.settings.model_fields["kind"].annotation) == (entry.kind,)


@pytest.mark.parametrize("slot", BUILT_IN)
def test_every_registration_in_the_code_is_listed(slot):
    written = {kind for file in ROOT.rglob("*.py") if file.name not in ("registry.py", "extend.py")
               for kind in re.findall(rf'@register\("{slot}", "([^"]+)"', file.read_text())}
    assert written == set(BUILT_IN[slot])


def test_settings_with_own_keys_alone_get_what_all_objectives_have(own):
    class ReverseSettings(Settings):
        rate: float = 0.15

    @register("objective", "reverse", ReverseSettings)
    class Reverse:
        guesses_tokens = True

    task = stemma.recipe("bert@tiny", ["objective.reverse.rate=0.2", "objective.reverse.weight=2"]).settings.objective[
        "reverse"]
    assert (task.kind, task.rate, task.weight, task.attention_mask_kind, task.allowed_packings) == ("reverse", 0.2,
                                                                                                    2.0, "full", ())
    assert task.generation is None and not task.predicts_bidirectionally and not task.rearranges_text
    with pytest.raises(UserError, match="objective.reverse.rat") as caught:
        stemma.recipe("bert@tiny", ["objective.reverse.rat=0.2"])
    assert 'Did you mean "objective.reverse.rate"?' in str(caught.value.problems)


def test_a_part_without_settings(own):
    @register("schedule", "level")
    def level(settings, at):
        return 1.0

    recipe = stemma.recipe("bert@tiny", ["training.schedule.kind=level"])
    assert recipe.values["training"]["schedule"] == {"kind": "level"}


def test_a_kind_that_is_taken_is_refused(own):
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


def test_a_slot_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match='no slot "objectiv".*Did you mean "objective"'):
        register("objectiv", "mine")


def test_an_unknown_kind_is_reported_with_the_nearest():
    with pytest.raises(UserError, match='no objective "maskedlm". Did you mean "masked_lm"'):
        registry.get("objective", "maskedlm")
    with pytest.raises(UserError) as caught:
        stemma.recipe("bert@tiny", ["objective.mine.kind=masked"])
    assert "must be one of masked_lm, next_sentence" in str(caught.value.problems)


def test_attention_that_cannot_do_something_is_refused_before_any_tensor_exists(own):
    from stemma.schema.parts import AttentionSettings

    class LinearSettings(AttentionSettings):
        pass

    register("attention", "linear", LinearSettings)(lambda network: None)
    linear = ["network.attention.kind=linear", "network.attention.dropout=0"]
    assert stemma.recipe("bert@tiny", linear).settings.network.attention.kind == "linear"
    for name, key, told in (
            ("gpt2@tiny", "network.attention.kind", "cannot be causal, which objective.causal_lm needs"),
            ("prefix-lm@tiny", "network.attention.kind", "takes no attention mask of its own"),
            ("t5@tiny", "network.attention.kind", "has no scores to which a bias could be added, which "
                                                  "network.position.kind needs"),
            ("modernbert@tiny", "network.attention.kind", "does not rotate queries and keys"),
            ("bart@tiny", "network.attention.kind", "cannot be causal, which network.decoder needs")):
        with pytest.raises(UserError) as caught:
            stemma.recipe(name, linear)
        assert any(place.startswith(key) and told in message for place, message in caught.value.problems), \
            caught.value.problems
    with pytest.raises(UserError, match="network.transition") as caught:
        stemma.recipe("bert@tiny", ["network.transition=gatd"])
    assert 'Did you mean "gated"?' in str(caught.value.problems)


def test_a_task_answers_with_a_head_of_the_users_own(own):
    from dataclasses import dataclass

    from stemma.task_config import TaskConfig

    @register("head", "PlainHead")
    @dataclass(frozen=True)
    class PlainHead:
        classes: int

        def build(self, settings, embedding):
            from torch import nn

            return nn.Linear(settings.width, self.classes)

    card = TaskConfig("task", "classify", ("a", "b"), {"task": PlainHead(2)}, "start A separator",
                "start A separator B separator", 16, ("accuracy",), parse_task_options("classify", {}))
    assert TaskConfig.from_json(card.to_json()) == card
