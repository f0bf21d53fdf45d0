"""On another device than the CPU a model gives the same answers, and nothing is mixed; see tests/pretended.py."""

from __future__ import annotations

import torch
from asking import all_models, questions, same
from pretended import device, pretended


def test_every_question_is_answered_elsewhere(tmp_path, monkeypatch):
    models = all_models(tmp_path)
    asked = questions(models)
    expected = {name: ask() for name, ask in asked.items()}
    # a wrapper's views are refused in inference mode, so that only its half that needs no gradients is left
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda mode: torch.no_grad() if mode else torch.enable_grad())
    with pretended():
        for model in models.values():
            model.network.to(device())
            assert model.device == device()
        for name, ask in asked.items():
            assert same(ask(), expected[name]), name
