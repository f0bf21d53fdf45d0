"""A fine-tuned model opens in `transformers` with its tokenizer and labels, and gives the same predictions.

transformers 5 has no pipeline for question answering; there its class is called directly.
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

SMALL = ["network.width=24", "network.heads=2", "network.feedforward=96"]
DISTILLED = ["network.embedding.segments=0", "corpus.pair=start A separator B separator",
             "remove=objective.next_sentence"]
MODELS = {  # family: recipe, kind of tokenizer, changes
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
    """A model as after fine-tuning, but with random weights."""
    recipe, tokenizer_kind, changes = MODELS[family]
    tokenizer = tokenizers[tokenizer_kind]
    start = stemma.build(recipe, tokenizer.vocab_size, changes)
    start.tokenizer = tokenizer
    labels = LABELS if kind in ("classify", "pair", "tag") else ()
    heads, stack = default_task_heads(start, kind, len(labels) or 1, name), default_stack(start, kind)
    encoder_only = start.is_encoder_decoder and stack == "encoder"
    model_recipe = encoder_only_recipe(start.recipe) if encoder_only else start.recipe
    network = Network(model_recipe.settings.network, tokenizer.vocab_size, heads).eval()
    perturb(network, 1)
    values = VALUES.get(kind, {}) | ({"stack": stack} if start.is_encoder_decoder else {})
    task_config = TaskConfig(name, kind, labels, heads, *input_templates(model_recipe.settings.corpus, tokenizer), 128,
                             ("accuracy",),
                parse_task_options(kind, values))
    return Model(model_recipe, tokenizer, network, task_configs={name: task_config})


def predictions_of(model: Model, examples: list) -> list[dict]:
    task_config = model.task_config()
    encoder = input_encoder_for(task_config, model.require_tokenizer())
    return predict_examples(model, build_task_objective(task_config, encoder), examples)


def label_scores(hf_prediction: list[dict]) -> dict[str, float]:
    return {entry["label"]: entry["score"] for entry in hf_prediction}


@pytest.mark.parametrize("kind", ["classify", "pair"])
@FAMILY
def test_text_classification_pipelines_agree(tmp_path, tokenizers, family, kind):
    model = finetuned(family, kind, tokenizers)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == family
    texts = [(text,) for text in TEXTS] if kind == "classify" else list(zip(TEXTS, reversed(TEXTS), strict=True))
    predictions = predictions_of(model, [TextExample("", example_texts, None) for example_texts in texts])
    hf_inputs = [dict(zip(("text", "text_pair"), example_texts, strict=False)) for example_texts in texts]
    hf_predictions = transformers.pipeline("text-classification", str(tmp_path / "m"), top_k=None)(hf_inputs)
    for prediction, hf_prediction in zip(predictions, hf_predictions, strict=True):
        assert prediction["label"] == hf_prediction[0]["label"]
        assert label_scores(hf_prediction) == pytest.approx(prediction["scores"], abs=1e-4)
    assert np.std([prediction["scores"]["yes"] for prediction in predictions]) > 1e-3, "the scores are constant"
    again = stemma.load(tmp_path / "m")
    assert again.task_configs == model.task_configs
    assert_close(predictions_of(again, [TextExample("", example_texts, None) for example_texts in texts]), predictions)


@pytest.mark.parametrize("kind", ["regress", "rank"])
@FAMILY
def test_regression_and_ranking_scores_agree(tmp_path, tokenizers, family, kind):
    model = finetuned(family, kind, tokenizers)
    stemma.save(model, tmp_path / "m")
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    predictions = predictions_of(model, [TextExample("", pair, None) for pair in pairs])
    scores = [prediction["score"] for prediction in predictions]
    hf_predictions = transformers.pipeline("text-classification", str(tmp_path / "m"))(
        [{"text": first, "text_pair": second} for first, second in pairs])
    assert [prediction["score"] for prediction in hf_predictions] == pytest.approx(scores, abs=1e-4)
    assert np.std(scores) > 1e-3
    assert stemma.load(tmp_path / "m").task_config().kind == kind


@FAMILY
def test_token_classification_pipelines_agree(tmp_path, tokenizers, family):
    model = finetuned(family, "tag", tokenizers)
    stemma.save(model, tmp_path / "m")
    if family in ABSENT["tag"]:  # transformers has no such class
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    words = [tuple(text.split()) for text in TEXTS]
    examples = [TaggedExample("", sentence, None) for sentence in words]
    predictions = predictions_of(model, examples)
    pipeline = transformers.pipeline("token-classification", str(tmp_path / "m"), ignore_labels=[])
    for sentence, prediction in zip(words, predictions, strict=True):
        pieces, begin, first_pieces = pipeline(" ".join(sentence)), 0, []
        for word in sentence:  # the first token that ends inside the word; it may begin with the blank before
            first_pieces.append(next(piece for piece in pieces if piece["end"] > begin))
            begin += len(word) + 1
        assert [piece["entity"] for piece in first_pieces] == prediction["tags"]
        assert [piece["score"] for piece in first_pieces] == pytest.approx(prediction["scores"], abs=1e-4)
    assert np.std([score for prediction in predictions for score in prediction["scores"]]) > 1e-3
    assert_close(predictions_of(stemma.load(tmp_path / "m"), examples), predictions)


@FAMILY
def test_question_answering_spans_agree(tmp_path, tokenizers, family):
    model = finetuned(family, "qa", tokenizers)
    stemma.save(model, tmp_path / "m")
    if family in ABSENT["qa"]:
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    context = " ".join(TEXTS[:4])  # fits one window
    examples = [QuestionExample("", str(index), context, text, (), None) for index, text in enumerate(TEXTS)]
    predictions = predictions_of(model, examples)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    hf_model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "m").eval()
    for text, prediction in zip(TEXTS, predictions, strict=True):
        inputs = hf_tokenizer(text, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, in_context = inputs.pop("offset_mapping")[0], np.array([part == 1 for part in inputs.sequence_ids(0)])
        with torch.no_grad():
            outputs = hf_model(**inputs)
        scores = outputs.start_logits[0][:, None] + outputs.end_logits[0][None]
        scores = scores.masked_fill(~torch.from_numpy(in_context[:, None] & in_context[None]), -1e9)
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).triu().tril(29), -1e9)
        first, last = divmod(int(scores.argmax()), len(scores))
        begin, text = int(offsets[first, 0]), context[int(offsets[first, 0]):int(offsets[last, 1])]
        begin += len(text) - len(text.lstrip())  # tokens may be blanks or begin with one; answers do not
        assert (begin, begin + len(text.strip())) == (prediction["start"], prediction["end"])
    assert len({prediction["start"] for prediction in predictions}) > 1
    assert_close(predictions_of(stemma.load(tmp_path / "m"), examples), predictions)


@FAMILY
def test_multiple_choice_scores_agree(tmp_path, tokenizers, family):
    model = finetuned(family, "choice", tokenizers)
    stemma.save(model, tmp_path / "m")
    examples = [ChoiceExample("", "", text, tuple(TEXTS[:3]), None) for text in TEXTS]
    predictions = predictions_of(model, examples)
    assert_close(predictions_of(stemma.load(tmp_path / "m"), examples), predictions)
    if family in ABSENT["choice"]:
        assert config_of(tmp_path / "m")["model_type"] == "stemma"
        return
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    hf_model = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "m").eval()
    for text, prediction in zip(TEXTS, predictions, strict=True):
        rows = [hf_tokenizer(text, option, return_tensors="pt") for option in TEXTS[:3]]
        with torch.no_grad():
            scores = torch.cat([hf_model(**{name: value[None] for name, value in row.items()}).logits[0]
                                for row in rows])
        assert scores.softmax(0).tolist() == pytest.approx(prediction["scores"], abs=1e-4)
    assert np.std([prediction["scores"][0] for prediction in predictions]) > 1e-3


def test_the_model_of_a_finetuning_run_opens_in_a_pipeline(tmp_path, tokenizers):
    start = stemma.build("bert@tiny", tokenizers["wordpiece"].vocab_size, SMALL)
    start.tokenizer = tokenizers["wordpiece"]
    stemma.save(start, tmp_path / "start")
    lines = "".join(f"{text}\t{LABELS[index % 3]}\n" for index, text in enumerate(TEXTS))
    (tmp_path / "examples.tsv").write_text("text\tlabel\n" + lines)
    files = dict.fromkeys(("train", "dev"), tmp_path / "examples.tsv")
    finetune(TaskArguments("classify", files), tmp_path / "start", tmp_path / "run", steps=3,
             changes=["training.batch_size=4"])
    predictions = [json.loads(line)["prediction"] for line in (tmp_path / "run/dev.jsonl").read_text().splitlines()]
    hf_predictions = transformers.pipeline("text-classification", str(tmp_path / "run/model"), top_k=None)(TEXTS)
    for prediction, hf_prediction in zip(predictions, hf_predictions, strict=True):
        assert label_scores(hf_prediction) == pytest.approx(prediction["scores"], abs=1e-4)
    assert stemma.load(tmp_path / "run").task_config().labels == tuple(sorted(LABELS))


def test_config_has_labels_and_problem_type(tmp_path, tokenizers):
    stemma.save(finetuned("bert", "classify", tokenizers), tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "perhaps"}
    assert config["label2id"] == {"no": 0, "yes": 1, "perhaps": 2}
    assert config["problem_type"] == "single_label_classification" and config["classifier_dropout"] == 0.1
    assert list(json.loads((tmp_path / "m/tasks.json").read_text())) == [DEFAULT_TASK]
