"""Fine-tuned models agree with the classes of `transformers` to 1e-4, in both directions, for each family and kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from parity.dropouts import DRAWS, Where, assert_same_draws, only
from parity.reference import assert_loads_into, config_of, configure, perturb, random_reference
from torch import Tensor

import stemma
from stemma.exchange import families
from stemma.exchange.tensor_map import from_hf
from stemma.model import Model
from stemma.network.heads import ClassHead, Pooler
from stemma.network.task_heads import SentenceHead
from stemma.task_config import DEFAULT_TASK

FAMILIES_TASKS = [(family, kind) for family, table in families().items() for kind in table.task_classes]
LABELS = {0: "no", 1: "yes", 2: "perhaps"}
PADDING = 1  # RoBERTa's places are counted by it
END = 2  # what the last hidden state of a decoder is found by
TWO_STACKS = {"eos_token_id": END, "decoder_start_token_id": 3}


def random_class(family: str, kind: str, seed: int) -> Any:
    labels = {"id2label": LABELS} if kind in ("classify", "tag") else {}
    ends = TWO_STACKS if families()[family].is_encoder_decoder else {}
    return random_reference(family, seed, families()[family].task_classes[kind].name, pad_token_id=PADDING, **labels,
                            **ends)


def inputs_of(config: Any, seed: int, filling: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Ids with filling at the end (XLNet's: in front, as its class takes the very last place), and how many places of
    each row to count for its last one."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = 4, 11
    ids = torch.randint(PADDING + 1, config.vocab_size, (rows, length), generator=generator)
    used = torch.tensor([11, 4, 7, 1]) if filling else torch.full((rows,), length)
    place = torch.arange(length)[None]
    front = config.model_type == "xlnet"
    real = place >= length - used[:, None] if front else place < used[:, None]
    types = {"token_type_ids": torch.randint(2, ids.shape, generator=generator)} \
        if getattr(config, "type_vocab_size", 0) >= 2 or front else {}
    if config.is_encoder_decoder:  # one end token in each row, and it stands last
        ids = ids.where(ids != END, END + 1).index_put((torch.arange(rows), used - 1), torch.tensor(END))
    given = {"input_ids": ids.masked_fill(~real, PADDING), "attention_mask": real.long(), **types}
    return given, torch.full((rows,), length) if front else used


def our_answer(model: Model, inputs: dict[str, Tensor], lengths: Tensor, learns: bool = False) -> Tensor:
    given = dict(inputs)
    if model.is_encoder_decoder:  # the same text, shifted right
        start = torch.full_like(inputs["input_ids"][:, :1], TWO_STACKS["decoder_start_token_id"])
        given["decoder_input_ids"] = torch.cat([start, inputs["input_ids"][:, :-1]], 1)
    with torch.set_grad_enabled(learns):
        hidden = model.network(model.streams(**given))["decoder" if model.is_encoder_decoder else "encoder"]
        card = model.task_config()
        head = model.network.heads[card.name]
        if isinstance(card.heads[card.name], SentenceHead):
            return head(hidden, lengths)
        return head(model.network.pool(hidden) if "pooler" in card.heads else hidden)


def their_answer(reference: Any, inputs: dict[str, Tensor], learns: bool = False) -> Tensor:
    with torch.set_grad_enabled(learns):
        return _asked(reference, inputs)


def _asked(reference: Any, inputs: dict[str, Tensor]) -> Tensor:
    if type(reference).__name__.endswith("MultipleChoice"):  # (questions, options, L): here one option each
        return reference(**{name: value[:, None] for name, value in inputs.items()}).logits
    told = reference(**inputs)
    return torch.stack([told.start_logits, told.end_logits], -1) if "start_logits" in told else told.logits


def assert_same_answers(model: Model, reference: Any, seed: int = 0) -> None:
    for filling in (False, True):
        inputs, lengths = inputs_of(reference.config, seed, filling)
        ours, theirs = our_answer(model, inputs, lengths), their_answer(reference, inputs)
        assert ours.shape == theirs.shape
        real = inputs["attention_mask"].bool() if ours.dim() == 3 else torch.ones(len(ours), dtype=torch.bool)
        assert theirs[real].std() > 1e-3, "the answers are all alike, so they prove nothing"
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("family", "kind"), FAMILIES_TASKS)
def test_a_foreign_class_agrees_both_ways(tmp_path, family, kind, seed):
    theirs = random_class(family, kind, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    model = stemma.load(tmp_path / "theirs")
    assert model.load_warnings == []
    card = model.task_config()
    assert (card.kind, card.name) == (kind, DEFAULT_TASK)
    assert card.labels == (tuple(LABELS.values()) if kind in ("classify", "tag") else ())
    assert_same_answers(model, theirs, seed)
    assert model.parameter_count() == theirs.num_parameters()

    stemma.save(model, tmp_path / "ours")
    back = assert_loads_into(type(theirs).__name__, tmp_path / "ours")
    assert (tmp_path / "ours/model.safetensors").read_bytes() == (tmp_path / "theirs/model.safetensors").read_bytes()
    told = config_of(tmp_path / "ours")
    assert told["architectures"] == [type(theirs).__name__]
    if card.labels:
        assert back.config.id2label == LABELS and back.config.label2id == {name: i for i, name in LABELS.items()}
    again = stemma.load(tmp_path / "ours")
    assert again.task_configs == model.task_configs and again.load_warnings == []
    assert_same_answers(again, theirs, seed)


@pytest.mark.parametrize(("family", "dropout"), [("bert", "classifier_dropout"), ("albert", "classifier_dropout_prob"),
                                                 ("distilbert", "seq_classif_dropout"),
                                                 ("xlnet", "summary_last_dropout"),
                                                 ("modernbert", "classifier_dropout")])
def test_the_dropout_before_the_output_layer_is_preserved(tmp_path, family, dropout):
    name = families()[family].task_classes["classify"].name
    random_reference(family, 0, name, **{dropout: 0.35}).save_pretrained(tmp_path / "theirs")
    model = stemma.load(tmp_path / "theirs")
    assert model.task_config().heads[DEFAULT_TASK].dropout == 0.35
    stemma.save(model, tmp_path / "ours")
    assert config_of(tmp_path / "ours")[dropout] == 0.35


RATES = ("hidden_dropout_prob", "dropout", "dropout_rate", "resid_pdrop", "attn_pdrop", "embd_pdrop",
         "attention_probs_dropout_prob", "attention_dropout", "embedding_dropout")  # whatever a family calls the body's
ANSWERS = {"classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "qa_dropout", "summary_last_dropout",
           "summary_first_dropout"}


NULL = ("bert", "roberta", "electra", "ernie")  # who may say null over there


@pytest.mark.parametrize(("family", "kind", "said"), [
    (family, kind, said) for family, kind in FAMILIES_TASKS
    for said in ("absent", "stated", *(("null",) if family in NULL else ()))])
def test_the_output_dropout_is_that_of_transformers(tmp_path, family, kind, said):
    """Where config.json does not say it, most take the body's, and some a number of their own."""
    known = transformers.AutoConfig.for_model(family).to_dict()
    name = families()[family].task_classes[kind].name
    random_reference(family, 0, name, **{key: 0.35 for key in RATES if key in known}).save_pretrained(tmp_path)
    answers = {"classifier_dropout"} if said == "null" else {"classifier_dropout", *(ANSWERS & known.keys())}
    configure(tmp_path, **dict.fromkeys(answers, {"absent": ..., "null": None, "stated": 0.45}[said]))
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    body = f"{theirs.base_model_prefix}."
    expected = {part.p for key, part in theirs.named_modules() if isinstance(part, torch.nn.Dropout)
                and not key.startswith((body, "encoder.", "decoder."))} or {0.0}
    model = stemma.load(tmp_path)
    assert model.network.embedding.dropout.p == 0.35
    assert {model.task_config().heads[DEFAULT_TASK].dropout} == expected


@pytest.mark.parametrize(("family", "kind"), [("bert", "classify"), ("roberta", "classify"), ("electra", "choice"),
                                              ("distilbert", "qa"), ("xlnet", "classify"), ("gpt2", "tag"),
                                              ("modernbert", "qa"), ("modernbert-decoder", "classify"),
                                              ("bart", "classify"), ("t5", "classify"), ("t5", "tag")])
def test_the_output_dropout_alone(tmp_path, family, kind):
    """RoBERTa's acts twice, before and behind the layer; the bounds are those of `dropouts.py`."""
    theirs = random_class(family, kind, 0)
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    model.network = only(model.network, [Where(rf"heads\.{DEFAULT_TASK}\.dropout")])
    body = theirs.base_model_prefix
    dropped = only(theirs, [Where(rf"(?!{body}\.).*")])
    inputs, lengths = inputs_of(theirs.config, 0, filling=False)
    torch.manual_seed(3)
    rows = {key: value[:1].expand(DRAWS, -1) for key, value in inputs.items()}
    assert_same_draws(our_answer(model, rows, lengths[:1].expand(DRAWS)), their_answer(dropped, rows))


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family, kind in FAMILIES_TASKS
                                              if families()[family].is_encoder_decoder])
def test_gradients_of_two_stacks(tmp_path, family, kind):
    """In training mode, without dropout: of the head, and of both stacks through it."""
    theirs = random_class(family, kind, 0)
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ours, other = only(model.network, []), only(theirs, [])
    model = replace(model, network=ours)
    inputs, lengths = inputs_of(theirs.config, 0, filling=True)
    expected = their_answer(other, inputs, learns=True)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    if expected.dim() == 3:  # what is said of padding differs, and nobody reads it
        weights *= inputs["attention_mask"][..., None]
    (expected * weights).sum().backward()
    (our_answer(model, inputs, lengths, learns=True) * weights).sum().backward()
    told = {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in other.named_parameters()}
    found = {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in ours.named_parameters()}
    card = model.task_config()
    table = families()[family].with_task_head(card.kind, card.name, card.heads, card.values.stack)
    for name, gradient in from_hf(table.tensor_keys(card.heads, found, bare=False), told, found).items():
        largest = float(gradient.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(found[name] / largest, gradient / largest, atol=2e-4, rtol=0, msg=f"{name} differs")


def test_the_comparison_can_fail(tmp_path):
    theirs = random_class("roberta", "classify", 0)
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    perturb(model.network.heads[DEFAULT_TASK], 1)
    with pytest.raises(AssertionError):
        assert_same_answers(model, theirs)


def test_regression_is_distinguished_from_classification(tmp_path):
    theirs = random_reference("bert", 3, "BertForSequenceClassification", num_labels=1)
    theirs.save_pretrained(tmp_path / "theirs")
    model = stemma.load(tmp_path / "theirs")
    assert (model.task_config().kind, model.task_config().labels) == ("regress", ())
    assert model.task_config().heads == {"pooler": Pooler(), DEFAULT_TASK: ClassHead(1, 0.1)}
    assert_same_answers(model, theirs)
    stemma.save(model, tmp_path / "ours")
    assert config_of(tmp_path / "ours")["problem_type"] == "regression"
    assert assert_loads_into("BertForSequenceClassification", tmp_path / "ours").config.num_labels == 1
