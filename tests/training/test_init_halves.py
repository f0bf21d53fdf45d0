"""A translator that starts from two language models: weights are copied, and its language models are those models."""

from __future__ import annotations

import json
import random

import pytest
import torch
from closeness import assert_close
from commands import has_checkpoint, start
from commands import stemma as command
from conftest import OBJECTS, PLACES, SEED, SUBJECTS, VERBS
from torch.nn import functional

import stemma
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.objectives.batch import Batch
from stemma.text.parallel import PairSource
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.init_halves import init_from_language_models
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader

SIZES = ["network.width=24", "network.layers=2", "network.initialization.std=0.2"]
LM = [*SIZES, "corpus.sequence_length=16", "training.batch_size=4", "training.learning_rate=0.01"]
PAIRS = ["corpus.sequence_length=32", "training.batch_size=4", "training.learning_rate=0.01",
         "training.checkpoint_every=20", "training.validate_every=20", "training.warmup_steps=5"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with source.txt, target.txt (words spelled backwards), a tokenizer, and two language models."""
    folder = tmp_path_factory.mktemp("halves")
    rng = random.Random(0)
    texts = [" ".join(rng.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, PLACES)) for _ in range(200)]
    backwards = [" ".join(word[::-1] for word in text.split()) for text in texts]
    for name, lines in (("source", texts), ("target", backwards)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    text = [(folder / f"{name}.txt").read_text() for name in ("source", "target")]
    tokenizer = train_tokenizer(iter(text), "word", 500, lowercase=False, roles={"padding", "unknown", "begin", "end"})
    tokenizer.save(folder / "tokenizer")
    for name, steps in (("source", 60), ("target", 61)):
        corpus = folder / f"{name}-corpus"
        build_corpus([folder / f"{name}.txt"], tokenizer, corpus)
        pretrain("lstm-lm@tiny", corpus, folder / name, steps=steps, seed=SEED, changes=LM)
    return folder


@pytest.fixture(scope="module")
def pairs(files):
    sides = PairSource(files / "source.txt", files / "target.txt")
    build_corpus([], files / "tokenizer", files / "pairs", pairs=[sides])
    return Corpus.open(files / "pairs")


@pytest.fixture(scope="module")
def started(files, pairs):
    """(recipe, network) before the first step."""
    recipe = stemma.recipe("lm-init-seq2seq@tiny", [*PAIRS, f"tokenizer.vocab_size={pairs.tokenizer.vocab_size}",
                                                    "tokenizer.kind=word"])
    torch.manual_seed(SEED)
    paths = {"encoder": str(files / "source"), "decoder": str(files / "target")}
    return init_from_language_models(paths, recipe, pairs)


def test_every_weight_of_both_language_models_is_copied(files, started):
    recipe, network = started
    source, target = (stemma.load(files / name).network for name in ("source", "target"))
    state = network.state_dict()
    assert recipe.settings.network.width == 24 and recipe.settings.network.decoder.depth.residual == 2
    copied = {}
    for name, tensor in source.state_dict().items():
        copied[name.replace("heads.vocabulary", "heads.source_vocabulary")] = tensor
    for name, tensor in target.state_dict().items():
        renamed = name.replace("encoder.layers", "decoder.layers").replace(".directions.0", "")
        copied[f"decoder_{name}" if name.startswith("embedding.") else renamed] = tensor
    assert len(copied) == 2 * len(source.state_dict())
    for name, tensor in copied.items():
        assert torch.equal(state[name], tensor), name
    new = {name.partition(".")[2].partition(".")[0] for name in state.keys() - copied.keys()}
    assert new == {"attention", "readout"}


@torch.no_grad()
def test_the_losses_of_its_language_models_are_those_of_the_two_models(files, pairs, started):
    recipe, network = started
    objectives = build_objectives(recipe)
    batch: Batch = PretrainLoader(recipe, pairs, objectives, SEED).get_batch(0, 32, 0.0).batch
    network.eval()
    result = objectives[1].loss(network, network(batch.streams), batch)["monolingual_lm"]
    total = 0.0
    for name, stream in (("source", batch.streams["encoder"]), ("target", batch.streams["decoder"])):
        model, mask = stemma.load(files / name), stream.token_mask()
        for row, ids in enumerate(stream.input_ids):
            length = len(ids) if mask is None else int(mask[row].sum())
            logits = model.logits(ids[None, :length])[0]
            if name == "source":
                logits, labels = logits[:-1], ids[1:length]
            else:
                target = batch.token_targets["vocabulary"]
                labels = target.labels[target.index // target.row_stride == row]
            total += float(functional.cross_entropy(logits, labels, reduction="sum"))
    assert_close(result, torch.tensor(total / batch.num_tokens))
    sliced = sum(float(objectives[1].loss(network, network(part.streams), part)["monolingual_lm"])
                 for part in batch.slices(2))
    assert sliced == pytest.approx(float(result), abs=1e-4)


def test_it_trains_resumes_and_translates(files, tmp_path):
    arguments = ["pretrain", "lm-init-seq2seq@tiny", "--corpus", files / "source.txt", "--target", files / "target.txt",
                 "--encoder-from", files / "source", "--decoder-from", files / "target", "--steps", "60", "--seed",
                 SEED, *PAIRS]
    whole = command(*arguments, "--out", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    assert whole.json["validation_loss"] < whole.json["unigram_loss"] - 0.5
    logged = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").open()]
    assert any("monolingual_lm" in json.dumps(line) for line in logged)
    running = start(*arguments, "--out", tmp_path / "killed")
    running.kill_when(lambda: has_checkpoint(tmp_path / "killed", 20))
    assert command("resume", tmp_path / "killed").code == 0
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert first == second
    assert command("translate", tmp_path / "whole", "--text", "the old clerk reads").code == 0


@pytest.mark.parametrize(("recipe", "options", "changes", "message"), [
    ("rnnsearch@tiny", {"encoder_from": "source"}, [], "choose lm-init-seq2seq"),
    ("lm-init-seq2seq@tiny", {"encoder_from": "source", "init_from": "source"}, [], "leave one of them out"),
    ("lm-init-seq2seq@tiny", {"encoder_from": "source", "decoder_from": "wide"}, [], "24 in"),
    ("lm-init-seq2seq@tiny", {"decoder_from": "source"}, ["network.width=32", "network.decoder.depth.hidden=32",
                                                         "network.decoder.depth.readout=32"], "not the one you ask")])
def test_what_does_not_fit_is_refused(tmp_path, files, pairs, recipe, options, changes, message):
    if "decoder_from" in options and options["decoder_from"] == "wide" and not (files / "wide").exists():
        pretrain("lstm-lm@tiny", files / "target-corpus", files / "wide", steps=1, changes=[*LM, "network.width=28"])
    with pytest.raises(UserError) as caught:
        pretrain(recipe, files / "pairs", tmp_path / "run", steps=1, changes=[*PAIRS, *changes],
                 **{name: files / path for name, path in options.items()})
    assert message in str(caught.value) + str(caught.value.problems)


def test_a_model_of_another_kind_or_vocabulary_is_refused(tmp_path, files, pairs):
    pretrain("gpt2@tiny", files / "source-corpus", tmp_path / "gpt", steps=1,
             changes=["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=32",
                      "corpus.sequence_length=16", "training.batch_size=2"])
    pretrain("lstm-lm@tiny", files / "source.txt", tmp_path / "other", steps=1, changes=LM)
    for path, message in ((tmp_path / "gpt", "needs an LSTM language model"), (tmp_path / "other", "vocabularies")):
        with pytest.raises(UserError, match=message):
            pretrain("lm-init-seq2seq@tiny", files / "pairs", tmp_path / "run", steps=1, changes=PAIRS,
                     encoder_from=path, overwrite=True)
