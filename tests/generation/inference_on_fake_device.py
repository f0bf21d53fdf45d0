"""Inference on a device other than the CPU gives the same results and mixes no devices; see tests/fake_device.py."""

from __future__ import annotations

import torch
from fake_device import device, use_fake_device
from inference_calls import all_models, equal, inference_calls


def test_inference_on_another_device_gives_the_same_results(tmp_path, monkeypatch):
    models = all_models(tmp_path)
    calls = inference_calls(models)
    expected = {name: call() for name, call in calls.items()}
    # torch refuses views of wrapper tensors in inference mode, so no_grad replaces it
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda mode: torch.no_grad() if mode else torch.enable_grad())
    with use_fake_device():
        for model in models.values():
            model.network.to(device())
            assert model.device == device()
        for name, call in calls.items():
            assert equal(call(), expected[name]), name
