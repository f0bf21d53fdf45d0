"""Example plug-ins of each kind, as a user would write them: one small file each."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

OBJECTIVE = '''
from stemma.extend import LM_HEAD, LMHeadSpec, Objective, Requirements, Settings, choose_tokens, register

class ReverseSettings(Settings):
    rate: float = 0.15

@register("objective", "reverse", ReverseSettings)
class Reverse(Objective):
    """Predict tokens that were replaced by the one before them."""
    predicts_tokens = True

    def requirements(self):
        return Requirements(heads={LM_HEAD: LMHeadSpec(transform=True)})

    def make_targets(self, draft, rng):
        selected = choose_tokens(draft, self.settings.rate, rng)
        draft.add_token_targets(LM_HEAD, at=selected, labels=draft.original_ids)
        ids = draft.input_ids.copy()
        ids[:, 1:][selected[:, 1:]] = draft.original_ids[:, :-1][selected[:, 1:]]
        draft.input_ids = ids

    def loss(self, network, output, batch):
        target = batch.token_targets[LM_HEAD]
        hidden = output["encoder"].flatten(0, 1)[target.index]
        return {self.name: network.head(LM_HEAD).loss(hidden, target.labels, target.denominator)}

    def baseline(self, batch, unigram):
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD].labels.numpy()].mean())}
'''
OPTIMIZER = '''
from stemma.extend import OptimizerSettings, register

class SignSettings(OptimizerSettings):
    momentum: float = 0.9

@register("optimizer", "sign", SignSettings)
def sign(groups, learning_rate, settings, precision):
    import torch

    class Sign(torch.optim.Optimizer):
        def __init__(self):
            super().__init__(groups, {"lr": learning_rate})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                        mean.lerp_(p.grad, 1 - settings.momentum)
                        p.sub_(mean.sign(), alpha=group["lr"])

    return Sign()
'''
SCHEDULE = '''
from stemma.extend import Settings, register

class SteepSettings(Settings):
    power: float = 2.0

@register("schedule", "steep", SteepSettings)
def steep(settings, point):
    return point.warmup_fraction if point.warmup_fraction < 1 else point.remaining_fraction ** settings.power
'''
PACKING = '''
from stemma.extend import PackingSettings, RowSpans, register

class FirstSettings(PackingSettings):
    one_document = True

@register("packing", "first", FirstSettings)
def first(documents, packer, rng):
    rows = [(row, bounds[0], min(bounds[-1] - bounds[0], packer.capacity), 0, False)
            for row, bounds in enumerate(documents)]
    return RowSpans.from_tuples(len(rows), rows)
'''
FAMILY = '''
from dataclasses import replace

from stemma.extend import register

@register("family", "own-bert")
def family():
    from stemma.exchange.bert import BERT
    required = {**BERT.required_recipe, "network.embedding.scale": True}
    return replace(BERT, model_type="own-bert", required_recipe=required)
'''
FILES = {"my_objective.py": OBJECTIVE, "my_optimizer.py": OPTIMIZER, "my_schedule.py": SCHEDULE,
         "my_packing.py": PACKING, "my_family.py": FAMILY}
ATTENTION = '''
import torch
from torch import nn
from stemma.extend import AttentionSettings, Linear, default_initializer, output_initializer, register

class LinearAttentionSettings(AttentionSettings):
    """Cost grows with the length and not its square (arXiv:2006.16236); every position attends to every other."""
    epsilon: float = 1e-6

@register("attention", "linear", LinearAttentionSettings)
class LinearAttention(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.heads, self.epsilon = network.heads, network.attention.epsilon
        self.input = Linear(network.width, 3 * network.width, True, default_initializer(network, network.width))
        self.output = Linear(network.width, network.width, True, output_initializer(network, network.width))

    def forward(self, x, context):
        query, key, value = self.input(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = torch.nn.functional.elu(query) + 1, torch.nn.functional.elu(key) + 1
        if context.attention_token_mask is not None:
            key = key * context.attention_token_mask[:, None, :, None]
        mixed = query @ (key.transpose(-1, -2) @ value)
        mixed = mixed / (query @ key.sum(-2)[..., None] + self.epsilon)
        return self.output(mixed.transpose(1, 2).flatten(2))
'''
NETWORK = '''
from dataclasses import replace
import torch
from torch import nn
from stemma.extend import (BodySettings, FeedForwardKind, Linear, NormKind, PositionScheme, PositionSettings, Stack,
                           output_initializer, register)

class SlowSettings(PositionSettings):
    base: float = 100.0

class SlowSinusoids(nn.Module):
    def __init__(self, width, base):
        super().__init__()
        self.width, self.base = width, base

    def forward(self, input_ids, position_ids):
        device = input_ids.device
        positions = torch.arange(input_ids.shape[1], device=device) if position_ids is None else position_ids
        return torch.sin(positions[..., None] / self.base ** torch.linspace(0, 1, self.width, device=device))

@register("position", "slow", SlowSettings)
class Slow(PositionScheme):
    def build_embedding(self, width):
        return SlowSinusoids(width, self.network.position.base)

@register("feedforward", "single", FeedForwardKind)
class Single(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.output = Linear(network.width, network.width, True, output_initializer(network, network.width))

    def forward(self, x, context):
        return self.output(torch.relu(x))

@register("norm", "centred", NormKind)
class Centred(nn.Module):
    def __init__(self, settings, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x - x.mean(-1, keepdim=True) + self.bias

class TwiceSettings(BodySettings):
    pass

@register("body", "twice", TwiceSettings)
class Twice(Stack):
    def forward(self, x, stack_input):
        first = super().forward(x, replace(stack_input, output_positions=None))
        return super().forward(first.last_hidden_state, stack_input)
'''
NETWORK_FILES = {"my_attention.py": ATTENTION, "my_network.py": NETWORK}
NETWORK_RECIPE = """
parent  = "bert"
remove  = ["objective.next_sentence"]
plugins = ["my_attention.py", "my_network.py"]

[corpus]
packing = "full_sentences"

[network]
transition = "single"

[network.attention]
kind    = "linear"
dropout = 0.0
epsilon = 1e-5

[network.position]
kind = "slow"
base = 50.0

[network.norm]
kind    = "centred"
place   = "pre"
epsilon = 1e-6

[network.depth]
kind = "twice"
"""
RECIPE = f'''
parent  = "bert"
remove  = ["objective.next_sentence", "objective.masked_lm"]
plugins = [{", ".join(f'"{name}"' for name in FILES)}]

[corpus]
packing = "first"

[network.embedding]
scale = true

[objective.reverse]
rate = 0.3

[training.optimizer]
kind = "sign"

[training.schedule]
kind  = "steep"
power = 3.0

[sizes.small]
laptop                  = true
network.layers          = 1
network.width           = 16
network.heads           = 2
network.feedforward     = 32
corpus.sequence_length  = 24
training.batch_size     = 4
training.learning_rate  = 1e-3
training.warmup_steps   = 2
'''


def write(folder: Path) -> list[str]:
    """Write the plug-ins and `mine.toml`, which lists them; returns their --plugin options."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "mine.toml").write_text(RECIPE)
    return [word for name in FILES for word in ("--plugin", name)]


def write_network(folder: Path) -> list[str]:
    """Write the network plug-ins and `deep.toml`; returns their --plugin options."""
    for name, content in NETWORK_FILES.items():
        (folder / name).write_text(content)
    (folder / "deep.toml").write_text(NETWORK_RECIPE)
    return [word for name in NETWORK_FILES for word in ("--plugin", name)]


def documented(name: str) -> str:
    """A plug-in that docs/how-to/extending.md shows, by the name of its file."""
    page = (Path(__file__).parent.parent / "docs" / "how-to" / "extending.md").read_text()
    match = re.search(rf"^```python\n# {re.escape(name)}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert match is not None, name
    return match[1]


def write_spans(folder: Path) -> dict[str, Path]:
    """Write the task kind `spans` and its examples; returns the files by split. Spans are persons and things."""
    (folder / "my_spans.py").write_text(documented("my_spans.py"))
    rng = random.Random(0)
    files = {}
    for split, count in (("train", 64), ("dev", 16)):
        rows = []
        for _ in range(count):
            person, thing = rng.choice(["clerk", "scribe", "printer"]), rng.choice(["a letter", "seven pages"])
            text = f"{rng.choice(['the old', 'a young'])} {person} reads {thing} {rng.choice(['at noon', 'again'])}"
            rows.append({"text": text, "spans": [[text.index(word), text.index(word) + len(word), label]
                                                 for word, label in ((person, "person"), (thing, "thing"))]})
        files[split] = folder / f"spans-{split}.jsonl"
        files[split].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files
