"""Text to text by models that were not made for it: encoders fill in masks, language models write behind the source.

What is learned from pairs is what is later written by: the loss of held-out pairs is the probability that the writer
gives to their targets. Masks are asked one by one, which is compared with a row that is read as a whole.
"""

from __future__ import annotations

import pytest
import torch
from parity.reference import perturb
from toy_pairs import pairs, rate, save_model, write_pairs

import stemma
from stemma.errors import UserError
from stemma.exchange.load import load
from stemma.generation.decoding_mode import decoding_spec
from stemma.generation.decoding_state import start_decoding
from stemma.network.inputs_outputs import Stream
from stemma.tasks.runs.seq2seq import finetune_seq2seq, seq2seq_recipe
from stemma.tasks.runs.seq2seq_data import data_from_cli
from stemma.visibility import Visibility

WRITERS = {"gpt2": (), "xlnet": ("network.attention.head_width=16",),
           "transformer-xl": ("network.attention.head_width=16",), "universal-transformer": (), "ettin-decoder": (),
           "nanochat": (), "gpt-bert": ("network.initialization.small=false",)}
ENCODERS = {"bert": (), "roberta": (), "albert": ("network.embedding.width=16",), "ernie-2": (),
            "modernbert": ("network.attention.windows=[0,1]",), "neobert": (),
            "ltg-bert": ("network.initialization.small=false",)}
DEV = [("ink lamp", "leaf tree"), ("page ink", "river leaf"), ("lamp noon", "tree copy")]


@pytest.fixture
def data(tmp_path):
    return data_from_cli({"train": [write_pairs(tmp_path / "train.tsv", pairs(60))],
                     "dev": [write_pairs(tmp_path / "dev.tsv", DEV)]})


def forced(model: stemma.Model, source: str, target: list[int], cached: bool) -> torch.Tensor:
    """(tokens, vocabulary) logits before each of these tokens."""
    laid = decoding_spec(model).format_prompt(model.require_tokenizer().encode(source, special=False).ids)
    reader, logits = start_decoding(model, [laid], cached), []
    with torch.inference_mode():
        for token in target:
            logits.append(reader.next_logits()[0])
            reader.append(torch.tensor([token]))
    return torch.stack(logits)


@pytest.mark.parametrize("name", WRITERS)
def test_the_loss_equals_the_likelihood_of_the_targets(tmp_path, data, name):
    start = save_model(tmp_path / "start", name, *WRITERS[name])
    result = finetune_seq2seq(start, data, tmp_path / "run", steps=2, beams=1,
                      changes=["training.batch_size=4", "training.precision=fp32", rate(name)])
    model = load(tmp_path / "run")
    (end,) = decoding_spec(model).eos_token_ids
    for cached in (True, False):
        costs = []
        for source, target in DEV:
            tokens = [*model.require_tokenizer().encode(target, special=False).ids, end]
            chances = forced(model, source, tokens, cached).log_softmax(-1)
            costs += [-float(chance[token]) for chance, token in zip(chances, tokens, strict=True)]
        assert sum(costs) / len(costs) == pytest.approx(result["validation_loss"], abs=1e-4)
    assert stemma.translate(model, ["ink"], beams=2)[0].tokens


class Seen(Visibility):
    """A prefix mask, written out: the source is bidirectional, the target causal."""

    def __init__(self, length: int, prefix: int):
        grid = torch.ones(length, length, dtype=torch.bool).tril()
        grid[:, :prefix] |= torch.arange(length)[None, :prefix] < prefix
        object.__setattr__(self, "grid", grid)

    def allows(self, query, key):
        return self.grid[None]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_generates_with_the_mask_after_its_text(tmp_path, name, cached):
    """As UniLM: source, generated tokens, mask token; in one window or several."""
    pretrained = load(save_model(tmp_path / "start", name, "network.layers=2", *ENCODERS[name]))
    model = stemma.Model(seq2seq_recipe(pretrained), pretrained.tokenizer, pretrained.network)
    perturb(model.network, 1)  # so that attention matters
    tokenizer = model.require_tokenizer()
    start, separator, mask = (tokenizer.special_id(role) for role in ("start", "separator", "mask"))
    (source, target), between = DEV[0], 2 if name == "roberta" else 1
    text, written = (tokenizer.encode(each, special=False).ids for each in (source, target))
    logits = forced(model, source, [*written, separator], cached)
    prefix = [start, *text, *[separator] * between]
    for index, scores in enumerate(logits):
        row = [*prefix, *written[:index], mask]
        parted = [0] * len(prefix) + [int(name in ("bert", "albert", "ernie-2"))] * (index + 1)
        stream = Stream(torch.tensor([row]), Seen(len(row), len(prefix)), segment_ids=torch.tensor([parted]))
        with torch.no_grad():
            expected = model.lm_head()(model.network({"encoder": stream})["encoder"])[0, -1]
        torch.testing.assert_close(scores, expected, atol=2e-5, rtol=0)
    task = next(iter(model.recipe.settings.objective.values()))
    assert (task.attention_mask, task.scored, task.rate) == ("prefix", "second", 0.7)
    assert (task.unit, task.dynamic) == ("token", True)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_they_learn_the_pairs(tmp_path, name):
    """Measured after 400 steps: a loss of 0.02 and 0.15; the unigram baseline is 2.3."""
    every = sorted(dict.fromkeys(pairs(2000, longest=3)), key=lambda pair: " " not in pair[0])
    data = data_from_cli({"train": [write_pairs(tmp_path / "train.tsv", every[20:])],
                     "dev": [write_pairs(tmp_path / "dev.tsv", every[:20])]})
    start = save_model(tmp_path / "start", name, "network.layers=2", *WRITERS.get(name, ()))
    result = finetune_seq2seq(start, data, tmp_path / "run", steps=150, beams=1,
                      changes=[rate(name), "training.batch_size=8", "training.schedule={kind='linear'}"])
    assert result["validation_loss"] < 1.6 < 2 < result["unigram_loss"]


def test_error_for_a_discriminator_names_its_generator(tmp_path, data):
    with pytest.raises(UserError, match=r"electra@tiny is a discriminator and predicts no tokens, .*its generator"):
        finetune_seq2seq(save_model(tmp_path / "electra", "electra"), data, tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_a_recipe_without_a_token_objective_is_rejected(tmp_path, data):
    start = load(save_model(tmp_path / "bert", "bert"))
    start.recipe = start.recipe.with_changes({"remove": ["objective.masked_lm", "objective.next_sentence"]}, "test")
    with pytest.raises(UserError, match="has no objective that predicts tokens, so it cannot learn to generate"):
        seq2seq_recipe(start)


def test_a_diffusion_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="generates by unmasking"):
        seq2seq_recipe(load(save_model(tmp_path / "start", "mdlm")))
