"""The note about absolute positions: which recipes get it, when, and what it recommends."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from stemma.recipe_loading import recipe
from stemma.training.stall_note import StallNote, stall_remedy

HEAD_OFFSETS, ROTARY = "network.initialization.head_offsets=[-1,1]", "network.position.kind=rotary"
SINUSOIDAL = ["network.position.kind=sinusoidal", "network.position.maximum=512",
              "remove=network.initialization.head_offsets"]


@pytest.mark.parametrize(("label", "changes", "expected"), [
    ("bert@tiny", [], "Train longer"), ("roberta@mini", [], "Train longer"), ("electra@tiny", [], "Train longer"),
    ("bert", [], HEAD_OFFSETS), ("bert-wwm", [], HEAD_OFFSETS), ("bert@tiny", SINUSOIDAL, ROTARY)])
def test_masked_models_with_absolute_positions_have_a_remedy(label, changes, expected):
    remedy = stall_remedy(recipe(label, changes))
    size = label.partition("@")[2] or "tiny"
    assert f"modernbert@{size}" in remedy and expected in remedy
    assert (HEAD_OFFSETS in remedy) == (expected == HEAD_OFFSETS) and (ROTARY in remedy) == (expected == ROTARY)


@pytest.mark.parametrize("label", ["modernbert@tiny", "gpt2@tiny", "bart@tiny", "neobert@tiny", "ltg-bert@tiny"])
def test_other_models_have_none(label):
    assert stall_remedy(recipe(label)) is None


def test_the_remedies_make_valid_recipes():
    changed = recipe("bert@tiny", ["network.position.kind=rotary", "network.position.maximum=512"])
    assert stall_remedy(changed) is None
    assert HEAD_OFFSETS not in stall_remedy(recipe("bert", [HEAD_OFFSETS]))


@pytest.mark.parametrize(("loss", "used", "expected"), [
    (6.9, 0.6, "0.10 nats below"), (7.25, 0.6, "0.25 nats above"), (6.4, 0.6, None), (6.9, 0.4, None),
    (None, 0.6, None)])
def test_a_stall_is_reported_once_in_the_second_half(caplog, loss, used, expected):
    trainer = SimpleNamespace(state=SimpleNamespace(used=used, tokens=800_000))
    note = StallNote("the remedy")
    with caplog.at_level(logging.WARNING, "stemma"):
        for _ in range(2):
            note.on_validation(trainer, {"validation_loss": loss, "unigram_loss": 7.0})
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == (expected is not None)
    assert expected is None or f"after 800,000 tokens the held-out loss is {expected}" in found[0]
