"""Inputs other than token ids: vectors of a corpus field, alone or with tokens, summed or fused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as run

import stemma
from stemma import plugins, recipe_loading, registry
from stemma.corpus.annotate import annotate
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.objectives import collate
from stemma.plugins import use_plugin
from stemma.visibility import PaddingRule

PAGE = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "extending.md").read_text()
JOINED = re.search(r"# my_fusion\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
SIZE, WIDTH = 5, 16
SMALL = [f"network.width={WIDTH}", "network.heads=2", "network.feedforward=24", "network.layers=2",
         "network.inputs.hint.kind=vectors", f"network.inputs.hint.size={SIZE}"]
IDS = torch.randint(40, (3, 7), generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(3, 7, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def corpus_with_hints(tmp_path_factory, corpus_folder) -> Path:
    """A corpus with a field that encodes the next token at every token."""
    folder = tmp_path_factory.mktemp("hinted") / "corpus"
    shutil.copytree(corpus_folder, folder)
    corpus = Corpus.open(folder)
    ids = corpus.values_between("tokens", 0, corpus.num_tokens)
    codes = np.random.default_rng(0).standard_normal((int(ids.max()) + 1, SIZE)).astype(np.float32)
    annotate(folder, token_fields={"hint": codes[np.roll(ids, -1)], "wide": np.zeros((corpus.num_tokens, SIZE + 1))})
    return folder


@torch.no_grad()
def test_vectors_alone_and_with_tokens_go_through_a_network():
    network = stemma.build("bert@tiny", 40, SMALL).network.eval()
    embedding = network.embedding
    token_mask = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    cases = {"vectors": (Stream(inputs={"hint": VECTORS}, attention_mask=PaddingRule(token_mask)),
                         embedding.inputs["hint"](VECTORS)),
             "both": (Stream(IDS, PaddingRule(token_mask), inputs={"hint": VECTORS}),
                      embedding.tokens(IDS) + embedding.inputs["hint"](VECTORS)),
             "tokens": (Stream(IDS, PaddingRule(token_mask)), embedding.tokens(IDS))}
    for stream, embedded in cases.values():
        assert (stream.batch, stream.length, stream.device.type) == (3, 7, "cpu")
        positions = embedding.position(IDS, None)
        assert_close(embedding(stream), embedding.norm(embedded + embedding.segments.weight[0] + positions))
        full, part = network({"encoder": stream})["encoder"], network({"encoder": stream.rows(slice(1, 3))})["encoder"]
        assert_close(part[0, :4], full[1, :4])  # rows() slices every input
    alone, both = (network({"encoder": cases[name][0]})["encoder"] for name in ("vectors", "both"))
    assert not torch.allclose(alone[0], both[0])
    with pytest.raises(AssertionError, match="no input for another"):
        network({"encoder": Stream(IDS, inputs={"another": VECTORS})})


def test_recipes_without_inputs_have_no_inputs_key():
    """So stored recipes and the digests of lab cells stay valid."""
    for name in set(recipe_loading.recipe_names()) - {"elmo"}:
        network = recipe_loading.recipe(name).values["network"]
        assert "inputs" not in network and "fusion" not in network["embedding"]
        assert "depth" not in network.get("decoder", {}) or name in ("rnnsearch", "cove", "lm-init-seq2seq")
    inputs = recipe_loading.recipe("bert@tiny", SMALL).values["network"]["inputs"]
    assert inputs == {"hint": {"kind": "vectors", "size": SIZE}}


def test_a_batch_has_the_field_of_an_input_and_zeros_at_replaced_tokens(corpus_with_hints):
    corpus, recipe = Corpus.open(corpus_with_hints), recipe_loading.recipe("bert@tiny", SMALL)
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, "start A separator", "start A separator B:1 separator:1", 12)
    draft = Draft(CorpusSubset.all_documents(corpus), RowSpans.from_tuples(2,
        [(0, 3, 8, 0, False), (1, 20, 5, 0, False)]), layout)
    ids = draft.input_ids.copy()
    ids[0, 2] = ids[0, 2] + 1  # replaced by another token
    draft.input_ids = ids
    inputs = collate(draft, "full", None, recipe.settings.network.inputs).streams["encoder"].inputs["hint"]
    expected = torch.from_numpy(np.ascontiguousarray(corpus.field("hint").at(np.arange(3, 11))))
    expected[1] = 0
    assert inputs.dtype == torch.float32 and torch.equal(inputs[0, 1:9], expected)
    assert not inputs[0, 0].any() and not inputs[0, 9:].any() and inputs[1, 1:6].any() and not inputs[1, 6:].any()


def test_a_network_learns_from_a_field_of_the_corpus(tmp_path, corpus_with_hints):
    """The hint encodes the next token, so a run with hints soon has a lower loss than one without. Killed, it resumes
    to the same bytes, and the model also generates without hints."""
    command = ["pretrain", "gpt2@tiny", "--corpus", corpus_with_hints, "--steps", "60", "--json", *SMALL[:4],
               "network.dropout=0", "network.attention.dropout=0", "corpus.sequence_length=24", "training.batch_size=8",
               "training.log_every=1", "training.checkpoint_every=20", "training.learning_rate=0.01",
               "training.warmup_steps=5", "training.optimizer.kind=adamw"]
    losses = {}
    for name, more in (("plain", []), ("hinted", SMALL[4:])):
        done = run(*command, *more, "--out", name, folder=tmp_path)
        assert done.code == 0, done.err
        lines = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        losses[name] = np.mean([line["loss"] for line in lines if "loss" in line][-10:])
    assert losses["hinted"] < losses["plain"] - 0.5, losses
    running = start(*command, *SMALL[4:], "--out", "killed", folder=tmp_path)
    running.kill_when(lambda: has_checkpoint(tmp_path / "killed", 20))
    assert run("resume", "killed", folder=tmp_path).code == 0
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("hinted", "killed"))
    assert first == second
    generated = run("generate", "hinted", "the old", "--tokens", "4", "--json", folder=tmp_path)
    assert generated.code == 0, generated.err
    assert json.loads((tmp_path / "hinted" / "model" / "config.json").read_text())["model_type"] == "stemma"


@torch.no_grad()
def test_a_plug_in_fusion_combines_tokens_and_inputs(monkeypatch, tmp_path):
    for slot in registry.BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "my_fusion.py").write_text(JOINED)
    use_plugin(tmp_path / "my_fusion.py")
    embedding = stemma.build("bert@tiny", 40, [*SMALL, "network.embedding.fusion=joined"]).network.eval().embedding
    streams = {"both": Stream(IDS, inputs={"hint": VECTORS}), "tokens": Stream(IDS)}
    hints = {"both": embedding.inputs["hint"](VECTORS), "tokens": torch.zeros(3, 7, WIDTH)}
    for name, stream in streams.items():
        fused = embedding.fusion.map(torch.cat([embedding.tokens(IDS), hints[name]], -1))
        other_embeddings = embedding.segments.weight[0] + embedding.position(IDS, None)
        assert_close(embedding(stream), embedding.norm(fused + other_embeddings))


@pytest.mark.parametrize(("name", "changes", "key", "expected"), [
    ("bert", ["network.inputs.hint.kind=vector"], "network.inputs.hint.kind", 'Did you mean "vectors"'),
    ("bert", ["network.inputs.hint.kind=vectors"], "network.inputs.hint.size", "is missing"),
    ("bert", [*SMALL[4:], "network.inputs.hint.sise=3"], "network.inputs.hint.sise",
     'Did you mean "network.inputs.hint.size"'),
    ("bert", ["network.embedding.fusion=sum"], "network.embedding.fusion", "there is nothing to combine tokens with"),
    ("bert", [*SMALL[4:], "network.embedding.fusion=add"], "network.embedding.fusion", "must be one of sum, gate"),
    ("bert", [*SMALL[4:], "network.inputs.hint.decoder=true"], "network.inputs.hint.decoder", "there is no decoder"),
    ("transformer", [*SMALL[4:], "network.inputs.hint.decoder=true"], "network.inputs.hint.decoder",
     "a decoder's text is tokens alone"),
    ("bert", ["network.inputs.speaker.kind=segments", "network.inputs.speaker.count=3"], "network.inputs.speaker.kind",
     "segments are read where network.embedding.segments says so"),
    ("bert", ["network.inputs.tokens.kind=vectors", "network.inputs.tokens.size=3"], "network.inputs.tokens",
     "an input is named by letters"),
])
def test_invalid_input_settings_are_refused(name, changes, key, expected):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe(name, changes)
    problems = refused.value.problems
    assert any(path.startswith(key) and expected in message for path, message in problems), problems


def test_a_corpus_without_the_field_is_rejected_before_training(corpus_with_hints, tmp_path):
    command = ["pretrain", "bert@tiny", "--corpus", corpus_with_hints, "--out", "run", "--steps", "2",
               "network.inputs.hint.kind=vectors", "network.inputs.hint.size=4",
               "network.inputs.topic.kind=vectors", "network.inputs.topic.size=2"]
    refused = run(*command, folder=tmp_path)
    assert refused.code == 2 and "set network.inputs.hint.size=5" in refused.err
    assert 'has no field "topic"; add one: `stemma corpus annotate' in refused.err
