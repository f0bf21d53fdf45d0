"""`fill` predicts masked tokens, and agrees with the fill-mask pipeline of transformers on the same folder."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.cli import main
from stemma.errors import UserError
from stemma.generation.fill import fill
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus_folder):
    """A run of a few steps, so that predictions differ between positions."""
    folder = tmp_path_factory.mktemp("fill") / "run"
    changes = ["network.width=32", "network.feedforward=48", "corpus.sequence_length=32", "training.batch_size=8",
               "training.precision=fp32", "training.threads=1"]
    stemma.pretrain("bert@tiny", corpus=corpus_folder, out=folder, steps=12, seed=1, changes=changes)
    return folder


@pytest.mark.parametrize("text", ["the old [MASK] reads a letter.", "[MASK]", "every scribe copies [MASK]",
                                  "The librarian [MASK] ÀÉ 北京 🙂 in the cellar."])
def test_fill_agrees_with_the_pipeline_of_transformers(run, text, capsys):
    pipeline = transformers.pipeline("fill-mask", model=str(run / "model"), tokenizer=str(run / "model"))
    expected = pipeline(text, top_k=7)
    assert main(["fill", str(run), text, "--top", "7", "--json"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    assert [candidate["token"] for candidate in prediction["candidates"]] == \
           [pipeline.tokenizer.convert_ids_to_tokens(candidate["token"]) for candidate in expected]
    assert [candidate["probability"] for candidate in prediction["candidates"]] == \
           pytest.approx([candidate["score"] for candidate in expected], abs=1e-5)
    assert len({candidate["token"] for candidate in prediction["candidates"]}) == 7


def test_several_masks_agree_with_the_pipeline_of_transformers(run):
    text = "the [MASK] copies the [MASK] notes [MASK] the river."
    pipeline = transformers.pipeline("fill-mask", model=str(run / "model"), tokenizer=str(run / "model"))
    result = fill(stemma.load(run), text, top=3)
    expected = pipeline(text, top_k=3)
    assert len(result) == len(expected) == 3
    for ours, theirs in zip(result, expected, strict=True):
        assert [c["probability"] for c in ours["candidates"]] == pytest.approx([c["score"] for c in theirs],
                                                                                               abs=1e-5)
    ids = torch.tensor(pipeline.tokenizer(text)["input_ids"])
    assert [c["position"] for c in result] == (ids == pipeline.tokenizer.mask_token_id).nonzero().flatten().tolist()


def test_a_run_and_its_model_folder_give_the_same_predictions(run):
    text = "a young [MASK] reads"
    assert_close(fill(stemma.load(run), text), fill(stemma.load(run / "model"), text))


def test_other_spellings_of_the_mask_token_are_accepted(run):
    model = stemma.load(run)
    assert_close(fill(model, "the <mask> reads"), fill(model, "the [MASK] reads"))


def test_probabilities_are_those_of_the_logits(run):
    model = stemma.load(run)
    (prediction,) = fill(model, "the [MASK] reads", top=10_000)
    encoding = model.tokenizer.encode("the [MASK] reads")
    row = model.logits(torch.tensor([encoding.ids]))[0, prediction["position"]].softmax(-1)
    assert len(prediction["candidates"]) == model.network.vocab_size
    assert sum(candidate["probability"] for candidate in prediction["candidates"]) == pytest.approx(1, abs=1e-4)
    for candidate in prediction["candidates"][:20]:
        expected = float(row[model.tokenizer.token_to_id(candidate["token"])])
        assert candidate["probability"] == pytest.approx(expected, abs=1e-6)


def test_padded_vocabulary_rows_are_never_predicted(tokenizer_folder):
    """Published embedding matrices are often padded to a round number of rows."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    model = stemma.build("bert@tiny", tokenizer.vocab_size + 9, ["network.width=16"])
    perturb(model.network, 0)
    model.tokenizer = tokenizer
    (prediction,) = fill(model, "the [MASK] reads", top=10_000)
    assert len(prediction["candidates"]) == tokenizer.vocab_size


@pytest.mark.parametrize(("recipe", "learned"), [("xlnet", "predicted tokens in permuted order"),
                                                 ("gpt2", "read text in one direction"),
                                                 ("prefix-lm", "continued texts")])
def test_models_without_masks_are_refused_with_their_training_task(recipe, learned, tokenizer_folder):
    """With and without a tokenizer, since another tokenizer would not help."""
    model = stemma.build(f"{recipe}@tiny", 320, ["network.width=16", "network.heads=2"])
    for model.tokenizer in (Tokenizer.load(tokenizer_folder), None):
        with pytest.raises(UserError, match=f"{recipe}@tiny cannot fill a mask: in pre-training it {learned}.*stemma "
                                            "generate"):
            fill(model, "the [MASK]")


def test_invalid_arguments_of_fill_are_refused(run, tokenizer_folder):
    model = stemma.load(run)
    with pytest.raises(UserError, match=r"no mask to fill; write \[MASK\]"):
        fill(model, "nothing is missing here")
    with pytest.raises(UserError, match="--top must be at least 1"):
        fill(model, "the [MASK]", top=0)
    with pytest.raises(UserError, match=r"5\d\d tokens long and bert@tiny reads at most 512"):
        fill(model, "the [MASK]" + " letter" * 510)
    headless = stemma.build("bert@tiny", 320, ["network.width=16", "remove=objective.masked_lm"])
    with pytest.raises(UserError, match="no tokenizer"):
        fill(headless, "the [MASK]")
    headless.tokenizer = Tokenizer.load(tokenizer_folder)
    with pytest.raises(UserError, match="no language-model head"):
        fill(headless, "the [MASK]")


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece"])
def test_the_space_before_a_mask_is_no_token(kind):
    """A token of these vocabularies contains the space before its word, so the mask stands for both."""
    text = "the old clerk reads a letter. the young reader forgets the river. " * 20
    roles = {"mask", "start", "separator", "padding"}
    tokenizer = train_tokenizer(iter([text]), kind, 300, lowercase=False, roles=roles)
    model = stemma.build("roberta@tiny", tokenizer.vocab_size, ["network.width=32", "network.layers=1"])
    model.tokenizer = tokenizer
    [one], [other] = fill(model, "the old [MASK] reads a letter."), fill(model, "the old[MASK] reads a letter.")
    corpus = model.recipe.settings.corpus
    before = tokenizer.with_template(corpus.single, corpus.pair).encode("the old").ids
    end = tokenizer.special_id("separator")
    assert one == other and one["position"] == len(before) - (before[-1] == end)
