"""ELECTRA (arXiv:2003.10555) in the Hugging Face layout: BERT's body with a discriminator's or a generator's head.

The two are separate models, and each stores the shared embedding.
"""

from __future__ import annotations

from stemma.exchange.bert import BERT
from stemma.exchange.family import Config, ConfigSetting, Family, Values
from stemma.exchange.hf_task_class import HFTaskClass, bert_task_classes
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import DiscriminatorHeadSpec, LMHeadSpec
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

WIDTH, PROJECT = "network.embedding.width", "embedding.project."


def _read_width(value: int, config: Config) -> int | None:
    return None if value == config["hidden_size"] else value


def _write_width(value: int | None, values: Values) -> int:
    return value or values["network.width"]


ELECTRA = Family(
    model_type="electra",
    recipe="electra@small",  # transformers' defaults are its sizes
    visibility=frozenset({"full"}),
    prefix="electra.",
    settings=(
        *(setting for setting in BERT.settings if setting.hf_key != "hidden_act"),
        ConfigSetting("network.activation", "hidden_act", {"gelu": "gelu"}),  # fixed in the generator's head
        ConfigSetting(WIDTH, "embedding_size", from_hf=_read_width, to_hf=_write_width),
    ),
    required_config=BERT.required_config,
    required_recipe={key: value for key, value in BERT.required_recipe.items() if key != WIDTH},
    body_keys=(
        *(TensorKey.of(PROJECT + kind, f"embeddings_project.{kind}", if_present=PROJECT + kind)
          for kind in ("weight", "bias")),
        *BERT.body_keys,
    ),
    head_keys={
        "vocabulary": (
            *linear_keys("heads.vocabulary.dense", "generator_predictions.dense"),
            *linear_keys("heads.vocabulary.norm", "generator_predictions.LayerNorm"),
            TensorKey.of("heads.vocabulary.bias", "generator_lm_head.bias"),
        ),
        "replaced_token": (
            *linear_keys("heads.replaced_token.dense", "discriminator_predictions.dense"),
            *linear_keys("heads.replaced_token.output", "discriminator_predictions.dense_prediction"),
        ),
    },
    head_specs={"vocabulary": LMHeadSpec(transform=True), "replaced_token": DiscriminatorHeadSpec()},
    architectures={
        frozenset({"replaced_token"}): "ElectraForPreTraining",
        frozenset({"vocabulary"}): "ElectraForMaskedLM",
        frozenset(): "ElectraModel",
    },
    removed_keys={"vocabulary": ("network.generator", "objective.replaced_token")},
    task_classes={
        **bert_task_classes("Electra"),  # but texts have other heads, since ELECTRA has no pooler
        "classify": HFTaskClass("ElectraForSequenceClassification", SentenceHead(1, "first", "gelu", early=True),
                                {"dense": "classifier.dense", "output": "classifier.out_proj"},
                                dropout="classifier_dropout", default_dropout="hidden_dropout_prob"),
        "choice": HFTaskClass("ElectraForMultipleChoice", SentenceHead(1, "first", "gelu"),
                              {"dense": "sequence_summary.summary", "output": "classifier"},
                              dropout="summary_last_dropout", default_dropout=0.1,
                              required_config={"summary_type": "first", "summary_use_proj": True,
                                               "summary_activation": "gelu"}),
    },
    tied_head_tensors={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    ignored_buffers=BERT.ignored_buffers,
    legacy_names=BERT.legacy_names,
)


@register("family", "electra")
def family() -> Family:
    return ELECTRA
