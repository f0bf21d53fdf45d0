"""`fill` guesses what stands behind a mask, as the fill-mask pipeline of transformers does with the same folder."""

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


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus_folder):
    """A run of a few steps: real enough for the guesses to differ from place to place."""
    folder = tmp_path_factory.mktemp("fill") / "run"
    changes = ["network.width=32", "network.feedforward=48", "corpus.sequence_length=32", "training.batch_size=8",
               "training.precision=fp32", "training.threads=1"]
    stemma.pretrain("bert@tiny", corpus=corpus_folder, out=folder, steps=12, seed=1, changes=changes)
    return folder


@pytest.mark.parametrize("text", ["the old [MASK] reads a letter.", "[MASK]", "every scribe copies [MASK]",
                                  "The librarian [MASK] ÀÉ 北京 🙂 in the cellar."])
def test_the_pipeline_of_transformers_agrees(run, text, capsys):
    pipeline = transformers.pipeline("fill-mask", model=str(run / "model"), tokenizer=str(run / "model"))
    expected = pipeline(text, top_k=7)
    assert main(["fill", str(run), text, "--top", "7", "--json"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["token"] for one in prediction["candidates"]] == \
           [pipeline.tokenizer.convert_ids_to_tokens(one["token"]) for one in expected]
    assert [one["probability"] for one in prediction["candidates"]] == \
           pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert len({one["token"] for one in prediction["candidates"]}) == 7


def test_several_masks_at_once_agree_too(run):
    text = "the [MASK] copies the [MASK] notes [MASK] the river."
    pipeline = transformers.pipeline("fill-mask", model=str(run / "model"), tokenizer=str(run / "model"))
    found = fill(stemma.load(run), text, top=3)
    expected = pipeline(text, top_k=3)
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert [one["probability"] for one in ours["candidates"]] == pytest.approx([one["score"] for one in theirs],
                                                                                   abs=1e-5)
    ids = torch.tensor(pipeline.tokenizer(text)["input_ids"])
    assert [one["position"] for one in found] == (ids == pipeline.tokenizer.mask_token_id).nonzero().flatten().tolist()


def test_the_run_and_its_model_answer_alike(run):
    text = "a young [MASK] reads"
    assert_close(fill(stemma.load(run), text), fill(stemma.load(run / "model"), text))


def test_any_spelling_of_the_mask_will_do(run):
    model = stemma.load(run)
    assert_close(fill(model, "the <mask> reads"), fill(model, "the [MASK] reads"))


def test_probabilities_are_those_of_the_logits(run):
    model = stemma.load(run)
    (prediction,) = fill(model, "the [MASK] reads", top=10_000)
    encoding = model.tokenizer.encode("the [MASK] reads")
    row = model.logits(torch.tensor([encoding.ids]))[0, prediction["position"]].softmax(-1)
    assert len(prediction["candidates"]) == model.network.vocab_size
    assert sum(one["probability"] for one in prediction["candidates"]) == pytest.approx(1, abs=1e-4)
    for one in prediction["candidates"][:20]:
        assert one["probability"] == pytest.approx(float(row[model.tokenizer.token_to_id(one["token"])]), abs=1e-6)


def test_rows_without_a_token_are_never_offered(tokenizer_folder):
    """Published vocabularies are often filled up to a round number."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    model = stemma.build("bert@tiny", tokenizer.vocab_size + 9, ["network.width=16"])
    perturb(model.network, 0)
    model.tokenizer = tokenizer
    (prediction,) = fill(model, "the [MASK] reads", top=10_000)
    assert len(prediction["candidates"]) == tokenizer.vocab_size


@pytest.mark.parametrize(("recipe", "learned"), [("xlnet", "predicted tokens in permuted order"),
                                                 ("gpt2", "read text in one direction"),
                                                 ("prefix-lm", "continued texts")])
def test_a_model_without_masks_says_what_it_can_do(recipe, learned, tokenizer_folder):
    """Another tokenizer would not help."""
    model = stemma.build(f"{recipe}@tiny", 320, ["network.width=16", "network.heads=2"])
    for model.tokenizer in (Tokenizer.load(tokenizer_folder), None):
        with pytest.raises(UserError, match=f"{recipe}@tiny cannot fill a mask: in pre-training it {learned}.*stemma "
                                            "generate"):
            fill(model, "the [MASK]")


def test_what_cannot_be_filled_is_told(run, tokenizer_folder):
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
