"""Minimal pairs: every way of scoring against its definition, ties, groups, intervals, and unreadable files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from closeness import assert_close
from literal import sentence_scores as literal
from parity.reference import perturb

import stemma
from stemma import registry
from stemma.errors import UserError
from stemma.evaluation.accuracy import wilson_interval
from stemma.evaluation.minimal_pairs import MinimalPair, minimal_pairs, pair_scores, read_pairs, summarize_pairs
from stemma.evaluation.sentence_likelihood import (
    choose_sentence_score,
    sentence_log_likelihoods,
    sentence_score_kinds,
)
from stemma.evaluation.sentence_scores import masked_rows
from stemma.text.train_tokenizer import train_tokenizer

TEXT = "the old clerk reads a letter. the young readers forget the river. one missing leaf by the window. " * 20
ROLES = {"mask", "start", "separator", "begin", "end", "padding", "sentinel"}
SMALL = ("network.layers=2", "network.width=16", "network.heads=2", "network.feedforward=24",
         "corpus.sequence_length=48")
SENTENCES = ["the old clerk reads a letter.", "the old clerk read a letter.", "the old clerk reads",
             "one missing leaf", "river", "the old clerk reads a letter.", "windows forget the young river by a leaf."]


def model_of(name: str, *changes: str) -> stemma.Model:
    tokenizer = train_tokenizer(iter([TEXT]), "wordpiece", 200, lowercase=True, roles=ROLES)
    torch.manual_seed(1)
    decoder = ("network.decoder.layers=2",) if name in ("t5", "bart", "mass", "transformer") else ()
    built = stemma.build(f"{name}@tiny", tokenizer.vocab_size, [*SMALL, *decoder, *changes])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    built.network.eval()
    return built


@pytest.mark.parametrize(("name", "kind", "score"), [
    ("gpt2", "causal", literal.causal),
    ("gpt2", "after_first", lambda model, text: literal.causal(model, text, separator=False)),
    ("bert", "masked", literal.masked), ("t5", "infilling", literal.t5), ("bart", "infilling", literal.bart),
    ("mass", "masked_span", literal.mass)])
@pytest.mark.parametrize("batch_tokens", [40, 8192])
def test_scores_are_those_of_the_definition(name, kind, score, batch_tokens, monkeypatch):
    monkeypatch.setattr(masked_rows, "BATCH_TOKENS", batch_tokens)
    model = model_of(name)
    computed = []
    scores = sentence_log_likelihoods(model, SENTENCES, kind, computed.append)
    assert_close(torch.from_numpy(scores), torch.tensor([score(model, text) for text in SENTENCES],
                                                        dtype=torch.float64), 1e-4)
    assert sum(computed) == len(set(SENTENCES))
    assert scores[0] == scores[5]


def test_a_prefix_lm_is_scored_like_a_causal_model_after_the_separator():
    model = model_of("prefix-lm")
    stream_model = model.network

    def score(text: str) -> float:
        from stemma.network.inputs_outputs import Stream
        from stemma.visibility import Causal

        ids = [model.document_separator_id, *literal.token_ids(model, text)]
        hidden = stream_model({"encoder": Stream(torch.tensor([ids]), Causal())})["encoder"]
        return sum(literal.log_p(model.lm_head()(hidden)[0, i - 1].detach(), ids[i]) for i in range(1, len(ids)))

    assert_close(torch.from_numpy(sentence_log_likelihoods(model, SENTENCES)),
                 torch.tensor([score(text) for text in SENTENCES], dtype=torch.float64), 1e-4)


def test_xlnet_is_scored_by_queries_that_no_position_attends_to(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = model_of("xlnet", "network.attention.head_width=8")
    stemma.save(model, tmp_path / "xlnet")
    reference = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "xlnet").eval()
    assert_close(torch.from_numpy(sentence_log_likelihoods(model, SENTENCES)),
                 torch.tensor([literal.xlnet(reference, model, text) for text in SENTENCES], dtype=torch.float64), 1e-3)


def test_a_model_with_a_memory_and_a_long_sentence_are_scored_as_any_text():
    long = " ".join(SENTENCES * 3)
    for model in (model_of("transformer-xl"), model_of("gpt2")):
        scores = sentence_log_likelihoods(model, [long, "river"])
        assert np.isfinite(scores).all() and scores[0] < scores[1]


def test_kinds_come_from_the_objectives_and_a_body_may_declare_its_own(monkeypatch):
    assert list(sentence_score_kinds(model_of("xlnet"))) == ["permuted", "causal"]
    assert list(sentence_score_kinds(model_of("unilm"))) == ["masked"]
    model = model_of("gpt2")

    @registry.register("sentence_score", "length")
    def length(model, objective, texts, on_progress):
        return np.array([-float(len(text)) for text in texts])

    try:
        monkeypatch.setattr(type(model.recipe.settings.network.depth), "sentence_scores", ("length",))
        assert sentence_log_likelihoods(model, ["aaa", "b"]).tolist() == [-3, -1]
    finally:
        registry.unregister(length.__module__)


def test_models_without_a_likelihood_and_unknown_kinds_are_refused():
    with pytest.raises(UserError, match="discriminator, which has no likelihood"):
        choose_sentence_score(model_of("electra"))
    with pytest.raises(UserError, match="transformer@tiny does not score sentences: none of its objectives"):
        choose_sentence_score(model_of("transformer"))
    with pytest.raises(UserError, match='has no scoring "mask"; it has masked. Did you mean "masked"'):
        choose_sentence_score(model_of("bert"), "mask")
    with pytest.raises(UserError, match="tokens long, and bert@tiny reads"):
        sentence_log_likelihoods(model_of("bert"), ["the old clerk " * 40])


def write_pairs(folder, name="agreement", pairs=(("the cats sleep", "the cats sleeps"),), **keys):
    folder.mkdir(exist_ok=True)
    rows = [{"sentence_good": good, "sentence_bad": bad, **keys} for good, bad in pairs]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_pairs_are_read_with_their_groups(tmp_path):
    write_pairs(tmp_path / "d", "a", [("x", "y"), ("z", "y"), ("w", "y")], UID="uid", linguistics_term="t",
                field="syntax_semantics")
    write_pairs(tmp_path / "d", "b")
    pairs = read_pairs(tmp_path / "d", limit=2)
    assert pairs[0] == MinimalPair("x", "y", "uid", "t", "syntax/semantics")
    assert [pair.phenomenon for pair in pairs] == ["uid", "uid", "b"]
    assert read_pairs(tmp_path / "d" / "b.jsonl") == pairs[2:]


def test_a_tie_counts_as_half():
    scores = pair_scores(np.array([-1.0, -2.0, -50.0, -50.0]), np.array([-2.0, -1.0, -50.00001, -50.1]))
    assert scores.tolist() == [1, 0, 0.5, 1]


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_a_constant_model_is_at_chance(tmp_path, name):
    """All logits are equal, so sentences with the same number of tokens tie."""
    model = model_of(name)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    pairs = [("the old clerk reads a letter.", "the old letter reads a clerk."), ("the river", "river the")] * 3
    result = minimal_pairs(model, write_pairs(tmp_path / "d", pairs=pairs))
    assert result["accuracy"] == 0.5 and result["ties"] == 6 and result["pairs"] == 6
    assert result["phenomena"] == {"agreement": 0.5} and result["sentences"] == 4


def test_the_mean_weighs_phenomena_equally_and_its_interval_covers():
    def pairs(name, field, count):
        return [MinimalPair("", "", name, None, field)] * count

    items = [*pairs("a", "syntax", 10), *pairs("b", "syntax", 40), *pairs("c", None, 10)]
    scores = np.array([1.0] * 10 + [0.5] * 40 + [0.0] * 10)
    result = summarize_pairs(items, scores)
    assert result["phenomena"] == {"a": 1, "b": 0.5, "c": 0} and result["accuracy"] == 0.5
    assert result["fields"]["syntax"]["accuracy"] == 0.75 and result["details"]["b"]["ties"] == 40
    assert result["details"]["a"]["interval"] == list(wilson_interval(10, 10))
    assert summarize_pairs(items[:10], scores[:10])["interval"] == pytest.approx(list(wilson_interval(10, 10)))
    rng = np.random.default_rng(0)
    rates, covered = np.array([0.3, 0.6, 0.95]), 0
    for _ in range(400):
        drawn = (rng.random(60) < np.repeat(rates, 20)).astype(float)
        low, high = summarize_pairs([pair for name in "abc" for pair in pairs(name, None, 20)], drawn)["interval"]
        covered += low <= rates.mean() <= high
    assert 0.92 <= covered / 400 <= 0.985


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        read_pairs(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the folder has no text files"):
        read_pairs(tmp_path / "empty")
    blank = tmp_path / "blank.jsonl"
    blank.write_text("\n \n")
    with pytest.raises(UserError, match="has no minimal pairs in it"):
        read_pairs(blank)
    broken = write_pairs(tmp_path / "d") / "broken.jsonl"
    broken.write_text('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": "a",\n[1]\n'
                      '{"sentence_good": "a"}\n{"sentence_good": "a", "sentence_bad": "  "}\n'
                      '{"sentence_good": "a", "sentence_bad": "b", "field": ["a"]}\n'
                      '{"sentence_good": "a", "sentence_bad": "b", "UID": {}, "linguistics_term": []}\n')
    with pytest.raises(UserError, match="has 6 lines that cannot be read as minimal pairs") as error:
        read_pairs(tmp_path / "d")
    problems = [f"{where} {what}" for where, what in error.value.problems]
    assert problems[0].startswith(f"{broken}, line 2 is not JSON")
    assert problems[1:] == [f"{broken}, line 3 is not a JSON object", f"{broken}, line 4 has no sentence_bad",
                            f"{broken}, line 5 sentence_bad is empty", f"{broken}, line 6 field is not a string",
                            f"{broken}, line 7 UID and linguistics_term are not a string"]
    blank.write_bytes("{\"sentence_good\": \"Les élèves dorment à l'école.\"}".encode("latin-1"))
    advice = r"is not utf-8 at byte 23 \(0xe9\); save it as UTF-8 \(it looks like latin-1\)\."
    with pytest.raises(UserError, match=advice):
        read_pairs(blank)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_is_1_or_more(tmp_path, limit):
    with pytest.raises(UserError, match=f"--limit must be 1 or more, not {limit}"):
        read_pairs(write_pairs(tmp_path / "d"), limit)
