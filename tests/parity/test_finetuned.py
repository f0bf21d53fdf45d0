"""Fine-tuned models agree with the classes of `transformers` to 1e-4, in both directions, for each family and kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from parity.dropouts import DRAWS, DropoutCalls, assert_same_draws, with_dropouts
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
PADDING = 1  # RoBERTa counts positions by it
END = 2  # the head of an encoder-decoder reads the last position with this token
ENCODER_DECODER = {"eos_token_id": END, "decoder_start_token_id": 3}


def random_class(family: str, kind: str, seed: int) -> Any:
    labels = {"id2label": LABELS} if kind in ("classify", "tag") else {}
    special_tokens = ENCODER_DECODER if families()[family].is_encoder_decoder else {}
    return random_reference(family, seed, families()[family].task_classes[kind].name, pad_token_id=PADDING, **labels,
                            **special_tokens)


def inputs_of(config: Any, seed: int, padded: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs, padded on the right (XLNet: on the left, since its class reads the last position), and the length of each
    row up to its last token."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = 4, 11
    ids = torch.randint(PADDING + 1, config.vocab_size, (rows, length), generator=generator)
    lengths = torch.tensor([11, 4, 7, 1]) if padded else torch.full((rows,), length)
    positions = torch.arange(length)[None]
    padded_left = config.model_type == "xlnet"
    mask = positions >= length - lengths[:, None] if padded_left else positions < lengths[:, None]
    types = {"token_type_ids": torch.randint(2, ids.shape, generator=generator)} \
        if getattr(config, "type_vocab_size", 0) >= 2 or padded_left else {}
    if config.is_encoder_decoder:  # one end token in each row, at its end
        ids = ids.where(ids != END, END + 1).index_put((torch.arange(rows), lengths - 1), torch.tensor(END))
    inputs = {"input_ids": ids.masked_fill(~mask, PADDING), "attention_mask": mask.long(), **types}
    return inputs, torch.full((rows,), length) if padded_left else lengths


def model_logits(model: Model, inputs: dict[str, Tensor], lengths: Tensor, requires_grad: bool = False) -> Tensor:
    stream_inputs = dict(inputs)
    if model.is_encoder_decoder:  # the same text, shifted right
        start = torch.full_like(inputs["input_ids"][:, :1], ENCODER_DECODER["decoder_start_token_id"])
        stream_inputs["decoder_input_ids"] = torch.cat([start, inputs["input_ids"][:, :-1]], 1)
    with torch.set_grad_enabled(requires_grad):
        hidden = model.network(model.streams(**stream_inputs))["decoder" if model.is_encoder_decoder else "encoder"]
        task_config = model.task_config()
        head = model.network.heads[task_config.name]
        if isinstance(task_config.heads[task_config.name], SentenceHead):
            return head(hidden, lengths)
        return head(model.network.pool(hidden) if "pooler" in task_config.heads else hidden)


def hf_logits(reference: Any, inputs: dict[str, Tensor], requires_grad: bool = False) -> Tensor:
    with torch.set_grad_enabled(requires_grad):
        return _hf_class_logits(reference, inputs)


def _hf_class_logits(reference: Any, inputs: dict[str, Tensor]) -> Tensor:
    if type(reference).__name__.endswith("MultipleChoice"):  # (questions, options, L), with one option
        return reference(**{name: value[:, None] for name, value in inputs.items()}).logits
    outputs = reference(**inputs)
    return torch.stack([outputs.start_logits, outputs.end_logits], -1) if "start_logits" in outputs else outputs.logits


def assert_same_logits(model: Model, reference: Any, seed: int = 0) -> None:
    for padded in (False, True):
        inputs, lengths = inputs_of(reference.config, seed, padded)
        logits, expected = model_logits(model, inputs, lengths), hf_logits(reference, inputs)
        assert logits.shape == expected.shape
        mask = inputs["attention_mask"].bool() if logits.dim() == 3 else torch.ones(len(logits), dtype=torch.bool)
        assert expected[mask].std() > 1e-3, "the logits are constant, so the comparison shows nothing"
        torch.testing.assert_close(logits[mask], expected[mask], atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("family", "kind"), FAMILIES_TASKS)
def test_every_task_class_agrees_in_both_directions(tmp_path, family, kind, seed):
    hf_model = random_class(family, kind, seed)
    hf_model.save_pretrained(tmp_path / "hf")
    model = stemma.load(tmp_path / "hf")
    assert model.load_warnings == []
    task_config = model.task_config()
    assert (task_config.kind, task_config.name) == (kind, DEFAULT_TASK)
    assert task_config.labels == (tuple(LABELS.values()) if kind in ("classify", "tag") else ())
    assert_same_logits(model, hf_model, seed)
    assert model.parameter_count() == hf_model.num_parameters()

    stemma.save(model, tmp_path / "stemma")
    back = assert_loads_into(type(hf_model).__name__, tmp_path / "stemma")
    assert (tmp_path / "stemma/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()
    config = config_of(tmp_path / "stemma")
    assert config["architectures"] == [type(hf_model).__name__]
    if task_config.labels:
        assert back.config.id2label == LABELS and back.config.label2id == {name: i for i, name in LABELS.items()}
    again = stemma.load(tmp_path / "stemma")
    assert again.task_configs == model.task_configs and again.load_warnings == []
    assert_same_logits(again, hf_model, seed)


@pytest.mark.parametrize(("family", "dropout"), [("bert", "classifier_dropout"), ("albert", "classifier_dropout_prob"),
                                                 ("distilbert", "seq_classif_dropout"),
                                                 ("xlnet", "summary_last_dropout"),
                                                 ("modernbert", "classifier_dropout")])
def test_the_head_dropout_is_saved(tmp_path, family, dropout):
    name = families()[family].task_classes["classify"].name
    random_reference(family, 0, name, **{dropout: 0.35}).save_pretrained(tmp_path / "hf")
    model = stemma.load(tmp_path / "hf")
    assert model.task_config().heads[DEFAULT_TASK].dropout == 0.35
    stemma.save(model, tmp_path / "stemma")
    assert config_of(tmp_path / "stemma")[dropout] == 0.35


# config.json keys, of any family
BODY_DROPOUTS = ("hidden_dropout_prob", "dropout", "dropout_rate", "resid_pdrop", "attn_pdrop", "embd_pdrop",
                 "attention_probs_dropout_prob", "attention_dropout", "embedding_dropout")
HEAD_DROPOUTS = {"classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "qa_dropout",
                 "summary_last_dropout", "summary_first_dropout"}
NULLABLE = ("bert", "roberta", "electra", "ernie")  # families whose classifier_dropout may be null


@pytest.mark.parametrize(("family", "kind", "stated"), [
    (family, kind, stated) for family, kind in FAMILIES_TASKS
    for stated in ("absent", "stated", *(("null",) if family in NULLABLE else ()))])
def test_the_head_dropout_is_that_of_transformers(tmp_path, family, kind, stated):
    """If config.json does not state it, most classes have the body's dropout, and some a value of their own."""
    default_config = transformers.AutoConfig.for_model(family).to_dict()
    name = families()[family].task_classes[kind].name
    body_dropouts = {key: 0.35 for key in BODY_DROPOUTS if key in default_config}
    random_reference(family, 0, name, **body_dropouts).save_pretrained(tmp_path)
    head_keys = {"classifier_dropout"} | (set() if stated == "null" else HEAD_DROPOUTS & default_config.keys())
    configure(tmp_path, **dict.fromkeys(head_keys, {"absent": ..., "null": None, "stated": 0.45}[stated]))
    hf_model = getattr(transformers, name).from_pretrained(tmp_path)
    body = f"{hf_model.base_model_prefix}."
    expected = {module.p for key, module in hf_model.named_modules() if isinstance(module, torch.nn.Dropout)
                and not key.startswith((body, "encoder.", "decoder."))} or {0.0}
    model = stemma.load(tmp_path)
    assert model.network.embedding.dropout.p == 0.35
    assert {model.task_config().heads[DEFAULT_TASK].dropout} == expected


@pytest.mark.parametrize(("family", "kind"), [("bert", "classify"), ("roberta", "classify"), ("electra", "choice"),
                                              ("distilbert", "qa"), ("xlnet", "classify"), ("gpt2", "tag"),
                                              ("modernbert", "qa"), ("modernbert-decoder", "classify"),
                                              ("bart", "classify"), ("t5", "classify"), ("t5", "tag")])
def test_the_head_dropout_has_the_same_distribution(tmp_path, family, kind):
    """RoBERTa has it twice, before and after the dense layer. The bounds are those of `dropouts.py`."""
    hf_model = random_class(family, kind, 0)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    model.network = with_dropouts(model.network, [DropoutCalls(rf"heads\.{DEFAULT_TASK}\.dropout")])
    body = hf_model.base_model_prefix
    hf_dropped = with_dropouts(hf_model, [DropoutCalls(rf"(?!{body}\.).*")])
    inputs, lengths = inputs_of(hf_model.config, 0, padded=False)
    torch.manual_seed(3)
    rows = {key: value[:1].expand(DRAWS, -1) for key, value in inputs.items()}
    assert_same_draws(model_logits(model, rows, lengths[:1].expand(DRAWS)), hf_logits(hf_dropped, rows))


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family, kind in FAMILIES_TASKS
                                              if families()[family].is_encoder_decoder])
def test_gradients_of_encoder_decoders_agree(tmp_path, family, kind):
    """In training mode without dropout: gradients of the head, the decoder and the encoder."""
    hf_model = random_class(family, kind, 0)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    network, hf_network = with_dropouts(model.network, []), with_dropouts(hf_model, [])
    model = replace(model, network=network)
    inputs, lengths = inputs_of(hf_model.config, 0, padded=True)
    expected = hf_logits(hf_network, inputs, requires_grad=True)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    if expected.dim() == 3:  # the logits of padding differ, and are not used
        weights *= inputs["attention_mask"][..., None]
    (expected * weights).sum().backward()
    (model_logits(model, inputs, lengths, requires_grad=True) * weights).sum().backward()
    gradients, hf_gradients = ({name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                                for name, parameter in module.named_parameters()} for module in (network, hf_network))
    task = model.task_config()
    table = families()[family].with_task_head(task.kind, task.name, task.heads, task.values.stack)
    keys = table.tensor_keys(task.heads, gradients, bare=False)
    for name, expected in from_hf(keys, hf_gradients, gradients).items():
        largest = float(expected.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(gradients[name] / largest, expected / largest, atol=2e-4, rtol=0,
                                   msg=f"{name} differs")


def test_the_comparison_can_fail(tmp_path):
    hf_model = random_class("roberta", "classify", 0)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    perturb(model.network.heads[DEFAULT_TASK], 1)
    with pytest.raises(AssertionError):
        assert_same_logits(model, hf_model)


def test_regression_is_distinguished_from_classification(tmp_path):
    hf_model = random_reference("bert", 3, "BertForSequenceClassification", num_labels=1)
    hf_model.save_pretrained(tmp_path / "hf")
    model = stemma.load(tmp_path / "hf")
    assert (model.task_config().kind, model.task_config().labels) == ("regress", ())
    assert model.task_config().heads == {"pooler": Pooler(), DEFAULT_TASK: ClassHead(1, 0.1)}
    assert_same_logits(model, hf_model)
    stemma.save(model, tmp_path / "stemma")
    assert config_of(tmp_path / "stemma")["problem_type"] == "regression"
    assert assert_loads_into("BertForSequenceClassification", tmp_path / "stemma").config.num_labels == 1
