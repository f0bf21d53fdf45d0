"""RoBERTa (arXiv:1907.11692) as Hugging Face lays it out: BERT's body, places counted from behind the padding token's
number, and a head of its own names."""

from __future__ import annotations

from dataclasses import replace

from stemma.exchange.bert import BERT
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import Family, Setting
from stemma.exchange.task_class import TaskClass, pooled_answers
from stemma.network.heads import Pooler, TokenHead
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

PADDING = 1  # the first place stands behind it in the table, and what is no padding is counted
OFFSET = PADDING + 1

SETTINGS = {setting.ours: setting for setting in BERT.settings} | {
    # the head's is written into the code over there, whatever the body's
    "network.activation": Setting("network.activation", "hidden_act", {"gelu": "gelu"}),
    "network.position.maximum": Setting("network.position.maximum", "max_position_embeddings", default=512,
                                        reads=lambda value, config: value - OFFSET,
                                        writes=lambda value, values: value + OFFSET),
    # BERT's are meant where nothing is said; the published models say others
    "network.embedding.segments": Setting("network.embedding.segments", "type_vocab_size", default=2),
    "network.norm.epsilon": Setting("network.norm.epsilon", "layer_norm_eps", default=1e-12),
}

ROBERTA = Family(
    model_type="roberta",
    recipe="roberta",
    sees=BERT.sees,
    also=BERT.also,
    prefix="roberta.",
    settings=tuple(SETTINGS.values()),
    holds={**BERT.holds, "pad_token_id": PADDING},
    fixed={**BERT.fixed, "network.position.offset": OFFSET, "network.position.counts": "tokens"},
    body=BERT.body,
    heads={
        "pooler": BERT.heads["pooler"],
        "vocabulary": (
            *linear("heads.vocabulary.dense", "lm_head.dense"),
            *linear("heads.vocabulary.norm", "lm_head.layer_norm"),
            Key.of("heads.vocabulary.bias", "lm_head.bias"),
        ),
    },
    specs={"pooler": Pooler(), "vocabulary": TokenHead(transform=True)},
    inside=BERT.inside,
    classes={
        frozenset({"vocabulary"}): "RobertaForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "RobertaForMaskedLM",  # the published files kept an untrained pooler
        frozenset({"pooler"}): "RobertaModel",
        frozenset(): "RobertaModel",
    },
    tasks={
        **pooled_answers("Roberta"),
        "classify": TaskClass("RobertaForSequenceClassification", SentenceHead(1, "first", "tanh", early=True),
                              {"dense": "classifier.dense", "output": "classifier.out_proj"},
                              dropout="classifier_dropout", otherwise="hidden_dropout_prob"),
        "choice": replace(pooled_answers("Roberta")["choice"], dropout=None),  # the network's own, whatever is said
    },
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    padding=PADDING,
    ignored=BERT.ignored,
    old_names=BERT.old_names,
)


@register("family", "roberta")
def family() -> Family:
    return ROBERTA
