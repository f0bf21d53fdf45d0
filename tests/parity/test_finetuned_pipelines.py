"""A fine-tuned folder of ours opens in `transformers` with its tokenizer and labels, and says there what it says here.

Releases of `transformers` from 5 on have no pipeline for questions; their class is asked directly.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close
from parity.reference import config_of, perturb

import stemma
from stemma.exchange.default_heads import default_stack, default_task_heads
from stemma.exchange.input_templates import input_templates
from stemma.model import Model
from stemma.network.network import Network
from stemma.schema.task_options import parse_task_options
from stemma.task_config import DEFAULT_TASK, TaskConfig
from stemma.tasks.data.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune import TaskArguments, encoder_only_recipe, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

# what is built here, the kind of its tokenizer, and the family that it is saved as
SMALL = ["network.width=24", "network.heads=2", "network.feedforward=96"]
DISTILLED = ["network.embedding.segments=0", "corpus.pair=start A separator B separator",
             "remove=objective.next_sentence"]
MODELS = {
    "bert": ("bert@tiny", "wordpiece", SMALL), "roberta": ("roberta@tiny", "byte_bpe", SMALL),
    "albert": ("albert@tiny", "wordpiece", [*SMALL, "network.embedding.width=16"]),
    "distilbert": ("bert@tiny", "wordpiece", [*SMALL, *DISTILLED]),
    "electra": ("electra@tiny", "wordpiece", SMALL), "ernie": ("ernie@tiny", "wordpiece", SMALL),
    "xlnet": ("xlnet@tiny", "wordpiece", [*SMALL, "network.attention.head_width=12"]),
    "openai-gpt": ("gpt@tiny", "wordpiece", SMALL), "gpt2": ("gpt2@tiny", "byte_bpe", SMALL),
    "bart": ("bart@tiny", "byte_bpe", SMALL), "t5": ("t5@tiny", "wordpiece", SMALL),
}
ABSENT = {"tag": ("openai-gpt", "bart"), "qa": ("openai-gpt",), "choice": ("openai-gpt", "gpt2", "bart", "t5")}
FAMILY = pytest.mark.parametrize("family", MODELS)
TEXTS = ["the old clerk copies a letter", "Every scribe forgets seven pages by the window.", "a", "one missing leaf",
         "our neighbour reads", "The printer numbers the margin notes before noon, without a lamp.", "an archive"]
LABELS = ("no", "yes", "perhaps")
VALUES = {**dict.fromkeys(("classify", "pair", "tag"), {"counts": [1, 1, 1]}), "regress": {"spread": 1.0},
          "qa": {"silence": False}}


@pytest.fixture(scope="module")
def tokenizers(text_file) -> dict[str, Tokenizer]:
    roles = {"mask", "start", "separator", "end"}
    return {kind: train_tokenizer(iter([text_file.read_text()]), kind, 320, lowercase=kind == "wordpiece", roles=roles)
            for kind in ("wordpiece", "byte_bpe")}


def finetuned(family: str, kind: str, tokenizers: dict[str, Tokenizer], name: str = DEFAULT_TASK) -> Model:
    """As a fine-tune leaves it, but with random weights."""
    recipe, spelling, changes = MODELS[family]
    tokenizer = tokenizers[spelling]
    start = stemma.build(recipe, tokenizer.vocab_size, changes)
    start.tokenizer = tokenizer
    labels = LABELS if kind in ("classify", "pair", "tag") else ()
    heads, stack = default_task_heads(start, kind, len(labels) or 1, name), default_stack(start, kind)
    chosen = encoder_only_recipe(start.recipe) if start.is_encoder_decoder and stack == "encoder" else start.recipe
    network = Network(chosen.settings.network, tokenizer.vocab_size, heads).eval()
    perturb(network, 1)
    values = VALUES.get(kind, {}) | ({"stack": stack} if start.is_encoder_decoder else {})
    card = TaskConfig(name, kind, labels, heads, *input_templates(chosen.settings.corpus, tokenizer), 128,
                      ("accuracy",),
                parse_task_options(kind, values))
    return Model(chosen, tokenizer, network, task_configs={name: card})


def said(model: Model, examples: list) -> list[dict]:
    card = model.task_config()
    return predict_examples(model, build_task_objective(card, input_encoder_for(card, model.require_tokenizer())),
                            examples)


@pytest.mark.parametrize("kind", ["classify", "pair"])
@FAMILY
def test_text_classification(tmp_path, tokenizers, family, kind):
    model = finetuned(family, kind, tokenizers)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == family
    texts = [(text,) for text in TEXTS] if kind == "classify" else list(zip(TEXTS, reversed(TEXTS), strict=True))
    ours = said(model, [TextExample("", given, None) for given in texts])
    asked = [{"text": given[0], **({"text_pair": given[1]} if kind == "pair" else {})} for given in texts]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "m"), top_k=None)(asked)
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other[0]["label"]
        assert {each["label"]: each["score"] for each in other} == pytest.approx(one["scores"], abs=1e-4)
    assert np.std([one["scores"]["yes"] for one in ours]) > 1e-3, "the answers are all alike, so they prove nothing"
    again = stemma.load(tmp_path / "m")
    assert again.task_configs == model.task_configs
    assert_close(said(again, [TextExample("", given, None) for given in texts]), ours)


@pytest.mark.parametrize("kind", ["regress", "rank"])
@FAMILY
def test_a_number(tmp_path, tokenizers, family, kind):
    model = finetuned(family, kind, tokenizers)
    stemma.save(model, tmp_path / "m")
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    ours = [one["score"] for one in said(model, [TextExample("", pair, None) for pair in pairs])]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "m"))(
        [{"text": first, "text_pair": second} for first, second in pairs])
    assert [each["score"] for each in theirs] == pytest.approx(ours, abs=1e-4) and np.std(ours) > 1e-3
    assert stemma.load(tmp_path / "m").task_config().kind == kind


@FAMILY
def test_token_classification(tmp_path, tokenizers, family):
    model = finetuned(family, "tag", tokenizers)
    stemma.save(model, tmp_path / "m")
    if family in ABSENT["tag"]:  # which have no such class over there
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    words = [tuple(text.split()) for text in TEXTS]
    ours = said(model, [TaggedExample("", each, None) for each in words])
    found = transformers.pipeline("token-classification", str(tmp_path / "m"), ignore_labels=[])
    for each, one in zip(words, ours, strict=True):
        pieces, begin, first = found(" ".join(each)), 0, []
        for word in each:  # the first piece that ends inside: it may begin with the blank before
            first.append(next(piece for piece in pieces if piece["end"] > begin))
            begin += len(word) + 1
        assert [piece["entity"] for piece in first] == one["tags"]
        assert [piece["score"] for piece in first] == pytest.approx(one["scores"], abs=1e-4)
    assert np.std([score for one in ours for score in one["scores"]]) > 1e-3
    assert_close(said(stemma.load(tmp_path / "m"), [TaggedExample("", each, None) for each in words]), ours)


@FAMILY
def test_questions(tmp_path, tokenizers, family):
    model = finetuned(family, "qa", tokenizers)
    stemma.save(model, tmp_path / "m")
    if family in ABSENT["qa"]:
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    context = " ".join(TEXTS[:4])  # in one window
    examples = [QuestionExample("", str(n), context, text, (), None) for n, text in enumerate(TEXTS)]
    ours = said(model, examples)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "m").eval()
    for text, one in zip(TEXTS, ours, strict=True):
        given = tokens(text, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, places = given.pop("offset_mapping")[0], np.array([part == 1 for part in given.sequence_ids(0)])
        with torch.no_grad():
            told = theirs(**given)
        scores = told.start_logits[0][:, None] + told.end_logits[0][None]
        scores = scores.masked_fill(~torch.from_numpy(places[:, None] & places[None]), -1e9)
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).triu().tril(29), -1e9)
        first, last = divmod(int(scores.argmax()), len(scores))
        begin, text = int(offsets[first, 0]), context[int(offsets[first, 0]):int(offsets[last, 1])]
        begin += len(text) - len(text.lstrip())  # tokens may be blanks or begin with one; answers do not
        assert (begin, begin + len(text.strip())) == (one["start"], one["end"])
    assert len({one["start"] for one in ours}) > 1
    assert_close(said(stemma.load(tmp_path / "m"), examples), ours)


@FAMILY
def test_multiple_choice(tmp_path, tokenizers, family):
    model = finetuned(family, "choice", tokenizers)
    stemma.save(model, tmp_path / "m")
    examples = [ChoiceExample("", "", text, tuple(TEXTS[:3]), None) for text in TEXTS]
    ours = said(model, examples)
    assert_close(said(stemma.load(tmp_path / "m"), examples), ours)
    if family in ABSENT["choice"]:
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "m").eval()
    for text, one in zip(TEXTS, ours, strict=True):
        rows = [tokens(text, option, return_tensors="pt") for option in TEXTS[:3]]
        with torch.no_grad():
            scores = torch.cat([theirs(**{name: value[None] for name, value in row.items()}).logits[0] for row in rows])
        assert scores.softmax(0).tolist() == pytest.approx(one["scores"], abs=1e-4)
    assert np.std([one["scores"][0] for one in ours]) > 1e-3


def test_a_fine_tune_ends_in_such_a_folder(tmp_path, tokenizers):
    start = stemma.build("bert@tiny", tokenizers["wordpiece"].vocab_size, SMALL)
    start.tokenizer = tokenizers["wordpiece"]
    stemma.save(start, tmp_path / "start")
    lines = "".join(f"{text}\t{LABELS[number % 3]}\n" for number, text in enumerate(TEXTS))
    (tmp_path / "examples.tsv").write_text("text\tlabel\n" + lines)
    files = dict.fromkeys(("train", "dev"), tmp_path / "examples.tsv")
    finetune(TaskArguments("classify", files), tmp_path / "start", tmp_path / "run", steps=3,
             changes=["training.batch_size=4"])
    kept = [json.loads(line)["prediction"] for line in (tmp_path / "run/dev.jsonl").read_text().splitlines()]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "run/model"), top_k=None)(TEXTS)
    for one, other in zip(kept, theirs, strict=True):
        assert {each["label"]: each["score"] for each in other} == pytest.approx(one["scores"], abs=1e-4)
    assert stemma.load(tmp_path / "run").task_config().labels == tuple(sorted(LABELS))


def test_files_beside_the_weights(tmp_path, tokenizers):
    stemma.save(finetuned("bert", "classify", tokenizers), tmp_path / "m")
    told = config_of(tmp_path / "m")
    assert told["id2label"] == {"0": "no", "1": "yes", "2": "perhaps"}
    assert told["label2id"] == {"no": 0, "yes": 1, "perhaps": 2}
    assert told["problem_type"] == "single_label_classification" and told["classifier_dropout"] == 0.1
    assert list(json.loads((tmp_path / "m/tasks.json").read_text())) == [DEFAULT_TASK]
