"""`stemma pretrain ngram`: counting in parts that a kill does not lose, and everything that takes a model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from closeness import assert_close
from commands import start_unreported as start
from commands import stemma_unreported as run
from conftest import small_text
from literal.arpa import ArpaFile
from literal.kneser_ney import START, KneserNey

import stemma
from stemma.corpus.corpus import Corpus
from stemma.counts.arpa import escape
from stemma.errors import UserError

PAIRS = [{"sentence_good": "The old clerk reads a letter.", "sentence_bad": "Clerk the old a reads letter."},
         {"sentence_good": "The printer copies seven pages.", "sentence_bad": "The seven copies printer pages."}]
PARTS = ["training.batch_size=2", "corpus.sequence_length=32", "training.checkpoint_every=3"]  # 64 tokens in a step


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text_file):
    """A folder with a trigram model, counted in small steps, and held-out text."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "held-out.txt").write_text(small_text(seed=1))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    completed = run("tokenizer", "train", text_file, "--for", "ngram", "--vocab-size", 400, "--out", "tok",
                    folder=folder)
    assert completed.code == 0, completed.err
    completed = run("corpus", "build", text_file, "--tokenizer", "tok", "--out", "corp", folder=folder)
    assert completed.code == 0, completed.err
    completed = run("pretrain", "ngram@tiny", "--corpus", "corp", "--out", "whole", "--json", *PARTS, folder=folder)
    assert completed.code == 0, completed.err
    assert completed.json["validation_loss"] < 0.5 * completed.json["unigram_loss"]
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return stemma.load(folder / "whole")


def weights(run_folder) -> bytes:
    return (run_folder / "model" / "model.safetensors").read_bytes()


def literal_model(folder) -> KneserNey:
    """The transcription of the paper, counted in the training documents of the corpus."""
    from stemma.objectives import build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.pretrain_loader import PretrainLoader

    corpus, resolved = Corpus.open(folder / "corp"), recipe(folder / "whole" / "recipe.toml", stored=True)
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    end = corpus.tokenizer.document_separator_id("end")
    documents = [[*corpus.values_between("tokens", first, last).tolist(), end]
                 for first, last in loader.training.document_ranges]
    loader.close()
    return KneserNey(documents, 3, range(corpus.tokenizer.vocab_size))


def test_the_run_equals_the_literal_transcription_of_its_text(folder, model):
    literal, tokenizer = literal_model(folder), model.tokenizer
    end = model.document_separator_id
    document = small_text(seed=1).split("\n\n")[0]
    ids = tokenizer.encode(document, special=False).ids
    tokens = [START, *ids]
    expected = [math.log(literal.probability(tokens[i], tokens[:i])) for i in range(1, len(tokens))]
    logits = model.logits(torch.tensor([[end, *ids[:-1]]]))[0]
    assert_close(logits.exp().sum(1), torch.ones(len(ids)), tolerance=1e-4)  # of the whole vocabulary
    assert_close(logits.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist(), expected)

    (folder / "document.txt").write_text(document)
    result = stemma.perplexity(folder / "whole", folder / "document.txt")
    assert result["tokens"] == len(ids) and result["lossless"] and result["unknown_rate"] == 0
    assert_close(result["bits_per_byte"], -sum(expected) / math.log(2) / len(document.encode()))


def test_a_killed_run_goes_on_with_the_runs_on_disk(folder):
    command = ["pretrain", "ngram@tiny", "--corpus", "corp", "--json", *PARTS]
    counts = folder / "killed" / "counts"
    start(*command, "--out", "killed", folder=folder).kill_when(lambda: len(list(counts.glob("run-*.npy"))) >= 5)
    assert not (folder / "killed" / "result.json").exists()
    before = {path.name: path.stat().st_mtime_ns for path in counts.glob("run-*.npy")}
    first = counts / min(before)
    first.write_bytes(first.read_bytes())  # a kept run is not written again, so its new time stays
    before = {path.name: path.stat().st_mtime_ns for path in counts.glob("run-*.npy")}
    running = start("resume", "killed", "--json", folder=folder)
    seen: dict[str, int] = {}

    def has_more() -> bool:
        for path in counts.glob("run-*.npy"):
            try:
                seen.setdefault(path.name, path.stat().st_mtime_ns)
            except FileNotFoundError:
                return True
        return len(seen) >= len(before) + 3

    running.kill_when(has_more)
    kept = before.keys() & seen.keys()
    assert len(kept) >= 4 and all(seen[name] == before[name] for name in kept)
    resumed = run("resume", "killed", "--json", folder=folder)
    assert resumed.code == 0, resumed.err
    assert weights(folder / "killed") == weights(folder / "whole")
    results = [json.loads((folder / name / "result.json").read_text()) for name in ("whole", "killed")]
    for key in ("steps", "tokens", "loss", "validation_loss"):
        assert results[0][key] == results[1][key], key
    assert not counts.exists()  # only training needs it


@pytest.mark.parametrize("changes", [("training.method.memory=1",), ("training.batch_size=500",)])
def test_the_size_of_the_parts_does_not_matter(folder, tmp_path, changes):
    stemma.pretrain("ngram@tiny", folder / "corp", tmp_path / "run", changes=["corpus.sequence_length=32", *changes])
    assert weights(tmp_path / "run") == weights(folder / "whole")


def test_a_model_that_is_saved_again_has_the_same_bytes(folder, model, tmp_path):
    stemma.save(model, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights(folder / "whole")
    assert model.parameter_count() == 0


def test_generation_continues_with_ngrams_of_the_text(folder, model):
    completed = run("generate", "whole", "the old", "--tokens", 20, "--temperature", 0.3, "--seed", 1, "--json",
                    folder=folder)
    assert completed.code == 0, completed.err
    assert len(completed.json["completions"][0]["text"]) > 10
    greedy = model.generate("The old", tokens=6, greedy=True)[0]
    ids, end = model.tokenizer.encode("The old", special=False).ids, model.document_separator_id
    for token in greedy.tokens if isinstance(greedy.tokens[0], int) else []:  # with a cache, as without
        assert int(model.logits(torch.tensor([[end, *ids]]))[0, -1].argmax()) == token
        ids.append(token)


def test_minimal_pairs_are_scored_by_likelihood(folder, model):
    completed = run("pairs", "whole", "pairs.jsonl", "--json", folder=folder)
    assert completed.code == 0, completed.err
    assert completed.json["scoring"] == "causal" and completed.json["accuracy"] == 1.0


def test_compare_with_a_network(folder):
    options = ["--corpus", "corp", "--seeds", 1, "--json", "corpus.sequence_length=32", "training.batch_size=2"]
    completed = run("compare", "ngram@tiny", "gpt2@tiny", "--tokens", 6500, "--out", "lab", *options, folder=folder)
    assert completed.code == 0, completed.err
    assert json.loads((folder / "lab" / "results.json").read_text())
    refused = run("compare", "ngram@tiny", "gpt2@tiny", "--flops", "1e9", "--out", "lab2", *options, folder=folder)
    assert refused.code == 2 and "counts and has no FLOPs to spend; give a budget in tokens or minutes" in refused.err


def test_export_and_convert_give_the_same_model(folder, model, tmp_path):
    completed = run("export", "whole", "--format", "arpa", "--out", "lm.arpa", "--json", folder=folder)
    assert completed.code == 0 and completed.json["bytes"] == (folder / "lm.arpa").stat().st_size
    converted = run("convert", "lm.arpa", "--tokenizer", "tok", "--out", "converted", "--json", folder=folder)
    assert converted.code == 0, converted.err
    assert converted.json["ngrams"][0] == 400 and len(converted.json["ngrams"]) == 3
    assert (folder / "converted" / "model.safetensors").read_bytes() == weights(folder / "whole")

    slow = ArpaFile((folder / "lm.arpa").read_text())
    ids = model.tokenizer.encode("The old clerk sings.", special=False).ids
    expected = slow.sentence([escape(model.tokenizer.id_to_token(token)) for token in ids])
    end = model.document_separator_id
    logits = model.logits(torch.tensor([[end, *ids]]))[0] / math.log(10)
    assert_close(logits.gather(1, torch.tensor([*ids, end])[:, None])[:, 0].tolist(), expected)

    one, other = (stemma.perplexity(folder / name, folder / "held-out.txt") for name in ("whole", "converted"))
    assert one["bits_per_byte"] == pytest.approx(other["bits_per_byte"])
    assert run("generate", "converted", "the", "--tokens", 3, folder=folder).code == 0


@pytest.mark.parametrize(("unknown", "note"), [
    ("-1\t<unk>\n", "lacks {} tokens of the tokenizer: the probability of <unk> is divided among them."),
    ("", "lacks {} tokens of the tokenizer: they have probability 0, because the file has no <unk>.")])
def test_a_note_says_which_probability_the_tokens_have_that_a_file_lacks(folder, unknown, note):
    (folder / "small.arpa").write_text(f"\\data\\\nngram 1={4 + bool(unknown)}\n\n\\1-grams:\n-99\t<s>\n-0.5\t</s>\n"
                                       f"-0.5\ta\n-0.5\tb\n{unknown}\n\\end\\\n")
    completed = run("convert", "small.arpa", "--tokenizer", "tok", "--out", "small", "--overwrite", folder=folder)
    assert completed.code == 0, completed.err
    tokenizer = stemma.load(folder / "small").tokenizer
    assert note.format(len(tokenizer.regular_ids) - 2) in completed.err


def test_a_text_that_spells_the_end_token_is_exported(folder):
    text = "The old clerk reads </s> a letter.\n\nThe printer </s> copies seven pages.\n\n"
    (folder / "ends.txt").write_text(text + small_text(seed=2))
    model = stemma.load(folder / "whole")
    assert model.tokenizer.encode(text, special=False).ids.count(model.document_separator_id) == 2
    for command in (["corpus", "build", "ends.txt", "--tokenizer", "tok", "--out", "ends-corpus"],
                    ["pretrain", "ngram@tiny", "--corpus", "ends-corpus", "--out", "ends"],
                    ["export", "ends", "--format", "arpa", "--out", "ends.arpa"],
                    ["convert", "ends.arpa", "--tokenizer", "tok", "--out", "ends-again"]):
        completed = run(*command, folder=folder)
        assert completed.code == 0, completed.err
    assert (folder / "ends-again" / "model.safetensors").read_bytes() == weights(folder / "ends")


@pytest.mark.parametrize(("command", "message"), [
    (["export", "whole", "--format", "arpaa", "--out", "x.arpa"],
     'no format "arpaa"; there is arpa, word2vec, word2vec-binary, glove, fasttext. Did you mean "arpa"?'),
    (["export", "whole", "--format", "arpa", "--out", "tok"], "tok exists and is not empty"),
    (["convert", "nothing.arpa", "--tokenizer", "tok", "--out", "x"], "there is no file nothing.arpa"),
    (["convert", "held-out.txt", "--tokenizer", "tok", "--out", "x"], "held-out.txt is no ARPA file"),
    (["convert", "latin.arpa", "--tokenizer", "tok", "--out", "x"], "; save it as UTF-8 (it looks like latin-1)."),
    (["finetune", "classify", "--model", "whole", "--train", "c.tsv", "--dev", "c.tsv", "--out", "x"],
     "ngram@tiny is a table of counts: it has no vectors and no weights, so it cannot be fine-tuned"),
    (["evaluate", "whole", "--data", "c.tsv"], "so it cannot be fine-tuned to answer a task. Use a network"),
    (["average", "whole", "--last", 1, "--out", "x"],
     "ngram@tiny is a table of counts, whose checkpoints have no mean; use whole/model."),
    (["embed", "whole", "held-out.txt", "--out", "x.npy"], "so it cannot embed texts"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--from", "whole", "--out", "x"], "cannot start another run"),
    (["fill", "whole", "the [MASK] of"], "ngram@tiny cannot fill a mask"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--out", "x", "network.depth.order=7"],
     "must lie between 1 and 6"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--out", "x", "network.layers=2"],
     "means nothing to a body of kind"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--out", "x", "network.width=8", "training.learning_rate=1"],
     "2 problems in ngram@tiny with your changes"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--out", "x", "training.precision=bf16"],
     "has no effect with kneser_ney; leave it out"),
    (["pretrain", "ngram@tiny", "--corpus", "corp", "--out", "x", "training.method.memory=0"], "1 or more"),
    (["pretrain", "gpt2@tiny", "--corpus", "corp", "--out", "x", "training.method.kind=kneser_ney"],
     "this network has no tables for them"),
])
def test_what_does_not_work_is_refused_in_one_sentence(folder, command, message):
    (folder / "latin.arpa").write_bytes("Les élèves dorment à l'école.\n\\data\\\n".encode("latin-1"))
    (folder / "c.tsv").write_text("text\tlabel\n" + "a good one\t1\na bad one\t0\n" * 4)
    completed = run(*command, folder=folder)
    assert completed.code == 2 and completed.err.rstrip().splitlines()[0 if "problem" in message else -1], completed.err
    assert message in completed.err and "Traceback" not in completed.err
    assert not (folder / "x").exists() and not (folder / "x.arpa").exists()


def test_a_network_is_no_arpa_file(tmp_path, corpus_folder):
    stemma.pretrain("gpt2@tiny", corpus_folder, tmp_path / "run", steps=1,
                    changes=["network.width=16", "network.heads=2", "network.layers=1", "corpus.sequence_length=32"])
    from stemma.exchange.export import export
    from stemma.exchange.load import load

    with pytest.raises(UserError, match="an ARPA file holds n-grams, and gpt2@tiny computes its probabilities"):
        export(load(tmp_path / "run"), "arpa", tmp_path / "lm.arpa")
    assert not (tmp_path / "lm.arpa").exists()


def test_a_vocabulary_without_an_end_token_is_refused(tmp_path, text_file):
    import tokenizers

    from stemma.corpus.build import build_corpus
    from stemma.text.tokenizer import Tokenizer

    words = {word: index for index, word in enumerate(sorted({"[UNK]", *small_text().lower().split()}))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    Tokenizer(backend).save(tmp_path / "tok")
    build_corpus([text_file], tmp_path / "tok", tmp_path / "corp", workers=1)
    with pytest.raises(UserError, match=r"needs a token that ends a document|role \"end\"|end"):
        stemma.pretrain("ngram@tiny", tmp_path / "corp", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_little_text_says_which_discounts_it_takes(tmp_path, folder, caplog):
    (tmp_path / "short.txt").write_text("The old clerk reads a letter.\n\nThe printer copies seven pages.\n")
    stemma.pretrain("ngram@tiny", tmp_path / "short.txt", tmp_path / "run", changes=["tokenizer.vocab_size=300"])
    assert "the text is too small to estimate the discounts of the n-grams of 1, 2 and 3 tokens" in caplog.text
    assert "they are 0.5, 1 and 1.5." in caplog.text
    assert np.isfinite(json.loads((tmp_path / "run" / "result.json").read_text())["loss"])


def test_the_warning_about_discounts_is_shown_at_the_end_only(tmp_path, folder, caplog):
    """The text read so far may be too small where the whole text is not."""
    stemma.pretrain("ngram@tiny", folder / "corp", tmp_path / "run",
                    changes=["corpus.sequence_length=32", "training.batch_size=2", "training.validate_every=4"])
    assert caplog.text.count("too small to estimate the discounts") == 1


@pytest.mark.parametrize("recipe", ["ngram@tiny", "two-sided-ngram"])
@pytest.mark.parametrize("tokens", [1, 4, 65, 500])
def test_a_budget_of_tokens_is_kept_exactly(tmp_path, folder, corpus_folder, recipe, tokens):
    result = stemma.pretrain(recipe, folder / "corp" if recipe == "ngram@tiny" else corpus_folder, tmp_path / "run",
                             tokens=tokens, changes=["corpus.sequence_length=32", "training.batch_size=1"])
    assert result["tokens"] == tokens and np.isfinite(result["loss"]) and result["loss"] > 0


def test_short_documents_give_no_advice_about_rows(tmp_path, folder, caplog):
    """Counting reads documents, not rows."""
    (tmp_path / "lines.txt").write_text("\n\n".join(small_text().split("\n")))
    result = stemma.pretrain("ngram@tiny", tmp_path / "lines.txt", tmp_path / "run",
                             changes=["corpus.packing=doc_sentences", "tokenizer.vocab_size=300"])
    assert "padding" not in caplog.text
    assert result["precision"] == "float32"
