"""ERNIE (arXiv:1904.09223) and ERNIE 2.0 (arXiv:1907.12412) as Hugging Face lays them out: BERT's body and heads under
another name, and task vectors where there are any."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

from stemma.exchange.bert import BERT
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import Config, Family, Setting
from stemma.exchange.task_class import pooled_answers
from stemma.network.heads import ClassHead
from stemma.registry import register

NONE_USED = 3  # what is said over there of the number of task vectors where there are none

SETTINGS = {setting.ours: setting for setting in BERT.settings} | {
    # BERT's are meant where nothing is said; the first published model says others
    "tokenizer.vocab_size": Setting("tokenizer.vocab_size", "vocab_size", default=30522),
    "network.position.maximum": Setting("network.position.maximum", "max_position_embeddings", default=512),
    "network.activation": replace(next(each for each in BERT.settings if each.theirs == "hidden_act"), default="gelu"),
}

BOTH = ("pooler", "vocabulary", "next_sentence")
# What the tasks of the two papers are answered by, under names of our own: nobody has it over there, and its tensors
# are left aside.
TASKS = {"dialogue_lm": ClassHead(2), "capitalisation": ClassHead(2), "token_document_relation": ClassHead(2),
         "sentence_reordering": ClassHead(9), "sentence_distance": ClassHead(3),
         "discourse_relation": ClassHead(2), "ir_relevance": ClassHead(3)}  # connectives: as many as the corpus had
WITH_TASKS = chain.from_iterable(combinations(TASKS, count) for count in range(1, len(TASKS) + 1))


def _tasks(value: object, config: Config) -> int:
    return config["task_type_vocab_size"] if config["use_task_id"] else 0


ERNIE = replace(
    BERT,
    model_type="ernie",
    recipe="ernie",
    prefix="ernie.",
    settings=(
        *SETTINGS.values(),
        Setting("network.embedding.tasks", "task_type_vocab_size", default=NONE_USED, reads=_tasks,
                writes=lambda value, values: value or NONE_USED),
        Setting("network.embedding.tasks", "use_task_id", default=False, reads=_tasks,
                writes=lambda value, values: bool(value)),
    ),
    body=(Key.of("embedding.tasks.weight", "embeddings.task_type_embeddings.weight", given="embedding.tasks.weight"),
          *BERT.body),
    heads={**{name: BERT.heads[name] for name in BOTH},
           **{name: linear(f"heads.{name}.output", f"cls.{name}") for name in TASKS}},
    specs={**{name: BERT.specs[name] for name in BOTH}, **TASKS},
    any_classes=frozenset(TASKS),
    classes={
        **{heads: kind.replace("Bert", "Ernie") for heads, kind in BERT.classes.items() if heads <= {*BOTH}},
        **{frozenset({*tasks, *heads}): "ErnieForMaskedLM" for tasks in WITH_TASKS
           for heads in (("vocabulary",), ("pooler", "vocabulary"))},
    },
    tasks=pooled_answers("Ernie"),
)


@register("family", "ernie")
def family() -> Family:
    return ERNIE
