"""Optimizer state for checkpoints: tensors by parameter name, and numbers as JSON."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stemma.training.method import MethodState


class OptimizerState:
    def __init__(self, network: nn.Module, optimizer: Optimizer):
        self.network, self.optimizer = network, optimizer

    def state(self) -> MethodState:
        """Flat tensors ("parameter name/key") and JSON (numbers, and the parameter names of each group)."""
        names = _names(self.network)
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else numbers)[f"{names[parameter]}/{key}"] = value
        groups = [{"parameters": [names[p] for p in group["params"]],
                   "values": {key: value for key, value in group.items() if _is_numeric(value)}}
                  for group in self.optimizer.param_groups]
        return MethodState(tensors, {"kind": type(self.optimizer).__name__, "groups": groups, "numbers": numbers})

    def incompatibility(self, values: dict[str, Any]) -> str | None:
        """Why these values do not belong to this optimizer; None if they do."""
        names, kind = _names(self.network), type(self.optimizer).__name__
        groups = [[names[p] for p in group["params"]] for group in self.optimizer.param_groups]
        if values["kind"] != kind or groups != [group["parameters"] for group in values.get("groups", [])]:
            return f"another optimizer ({values['kind']}, not {kind}, or other groups)"
        return None

    def restore(self, state: MethodState) -> None:
        parameters = {name: parameter for parameter, name in _names(self.network).items()}
        optimizer, plain = self.optimizer, state.values
        optimizer.state.clear()
        for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
            group.update({key: tuple(value) if isinstance(value, list) else value
                          for key, value in saved["values"].items()})
        fused = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
        for path, value in {**state.tensors, **plain["numbers"]}.items():
            name, key = path.rsplit("/", 1)
            parameter = parameters[name]
            if isinstance(value, Tensor) and (key != "step" or parameter in fused):
                value = value.to(parameter.device)  # step counts stay on the CPU, unless a fused kernel needs them
            optimizer.state[parameter][key] = value


def _names(network: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in network.named_parameters()}


def _is_numeric(value: object) -> bool:
    """Learning rates, betas and the like. Flags are not stored: they depend on the machine."""
    if isinstance(value, tuple):
        return all(_is_numeric(v) for v in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
