"""ELECTRA (arXiv:2003.10555) as Hugging Face lays it out: BERT's tensors, under the names of a discriminator or of a
generator, each a model of its own with its own copy of the embedding."""

from __future__ import annotations

from stemma.exchange.bert import BERT
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import Config, Family, Setting, Values
from stemma.exchange.task_class import TaskClass, pooled_answers
from stemma.network.heads import JudgeHead, TokenHead
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

WIDTH, PROJECT = "network.embedding.width", "embedding.project."


def _read_width(value: int, config: Config) -> int | None:
    return None if value == config["hidden_size"] else value


def _write_width(value: int | None, values: Values) -> int:
    return value or values["network.width"]


ELECTRA = Family(
    model_type="electra",
    recipe="electra@small",  # whose sizes are theirs where config.json is silent
    sees=frozenset({"full"}),
    prefix="electra.",
    settings=(
        *(setting for setting in BERT.settings if setting.theirs != "hidden_act"),
        Setting("network.activation", "hidden_act", {"gelu": "gelu"}),  # in the generator's head there is no other
        Setting(WIDTH, "embedding_size", reads=_read_width, writes=_write_width),
    ),
    holds=BERT.holds,
    fixed={key: value for key, value in BERT.fixed.items() if key != WIDTH},
    body=(
        *(Key.of(PROJECT + kind, f"embeddings_project.{kind}", given=PROJECT + kind) for kind in ("weight", "bias")),
        *BERT.body,
    ),
    heads={
        "vocabulary": (
            *linear("heads.vocabulary.dense", "generator_predictions.dense"),
            *linear("heads.vocabulary.norm", "generator_predictions.LayerNorm"),
            Key.of("heads.vocabulary.bias", "generator_lm_head.bias"),
        ),
        "replaced_token": (
            *linear("heads.replaced_token.dense", "discriminator_predictions.dense"),
            *linear("heads.replaced_token.output", "discriminator_predictions.dense_prediction"),
        ),
    },
    specs={"vocabulary": TokenHead(transform=True), "replaced_token": JudgeHead()},
    classes={
        frozenset({"replaced_token"}): "ElectraForPreTraining",
        frozenset({"vocabulary"}): "ElectraForMaskedLM",
        frozenset(): "ElectraModel",
    },
    removes={"vocabulary": ("network.generator", "objective.replaced_token")},
    tasks={
        **pooled_answers("Electra"),  # but there is no pooler, so that texts are judged in other ways
        "classify": TaskClass("ElectraForSequenceClassification", SentenceHead(1, "first", "gelu", early=True),
                              {"dense": "classifier.dense", "output": "classifier.out_proj"},
                              dropout="classifier_dropout", otherwise="hidden_dropout_prob"),
        "choice": TaskClass("ElectraForMultipleChoice", SentenceHead(1, "first", "gelu"),
                            {"dense": "sequence_summary.summary", "output": "classifier"},
                            dropout="summary_last_dropout", otherwise=0.1,
                            holds={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}),
    },
    copies={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    ignored=BERT.ignored,
    old_names=BERT.old_names,
)


@register("family", "electra")
def family() -> Family:
    return ELECTRA
