"""word2vec and fastText in a run folder beside gensim's own run: the same sentences, settings and number of passes.

    python benchmarks/word_vectors_vs_gensim.py TEXT [--passes 5] [--only skip-gram] [--gensim-runs 2]

Prints Spearman's correlation on WordSim-353 and SimLex-999 and the accuracy on Google's analogies, which gensim ships,
and words per second of both sides. Both use one thread. Words are lower-cased. gensim runs twice, with other
random numbers, so that the difference between its own runs can be seen; GloVe has no peer here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import stemma
from stemma.training.pretrain import open_run
from stemma.training.run_folder import read_run
from stemma.vectors.questions import analogy_accuracy, read_pairs, read_questions, similarity_scores
from stemma.vectors.word_vectors import WordVectors

DATA = Path(str(find_spec("gensim").origin)).parent / "test" / "test_data"  # type: ignore[union-attr]
COMMON = ("tokenizer.lowercase=true", "training.threads=1", "training.validate_every=1000000",
          "training.checkpoint_every=1000000")
CASES = {"cbow": ("word2vec@mini", []),
         "skip-gram": ("word2vec@mini", ["objective.word_context.architecture=skip_gram",
                                         "training.learning_rate=0.025"]),
         "fasttext": ("fasttext@mini", []),
         "glove": ("glove@mini", [])}


def scores(vectors: WordVectors) -> dict[str, Any]:
    wordsim, simlex = (similarity_scores(vectors, read_pairs(DATA / name)) for name in ("wordsim353.tsv",
                                                                                       "simlex999.txt"))
    analogies = analogy_accuracy(vectors, read_questions(DATA / "questions-words.txt"))
    return {"words": len(vectors), "wordsim": wordsim["spearman"], "wordsim_pairs": wordsim["pairs"],
            "simlex": simlex["spearman"], "simlex_pairs": simlex["pairs"], "analogy": analogies["accuracy"],
            "questions": analogies["questions"]}


def words_only(vectors: WordVectors) -> WordVectors:
    """Without subwords, so that both sides score the same pairs."""
    return WordVectors(vectors.words, vectors.matrix, name=vectors.name)


def gensim_run(run: Path, passes: int, seed: int) -> dict[str, Any]:
    """gensim on the sentences that the run trained on."""
    from gensim.models import FastText, Word2Vec

    from stemma.training.gensim_vectors import GensimVectors

    trainer = open_run(run, False).trainer
    method = trainer.method
    assert isinstance(method, GensimVectors)
    tokens = method.tokens(0, len(method.spans))
    sentences = list(method._sentences(tokens, method.span_tokens))
    trainer.loader.close()
    task, recipe = method.task, read_run(run)[0].settings
    options: dict[str, Any] = {
        "vector_size": recipe.network.width, "window": task.window, "sg": int(task.architecture == "skip_gram"),
        "negative": task.negatives, "sample": recipe.training.method_settings.subsample, "min_count": 5, "workers": 1,
        "alpha": recipe.training.learning_rate, "min_alpha": recipe.training.learning_rate * 1e-4, "seed": seed}
    model = FastText(**options, bucket=task.buckets) if task.buckets else Word2Vec(**options)
    model.build_vocab(sentences)
    start = time.perf_counter()
    # by words, as the authors' code lowers the learning rate; by sentences (gensim's usual call) it is higher in a part
    # of the text with long sentences
    model.train(sentences, total_words=sum(map(len, sentences)), epochs=passes)
    seconds = time.perf_counter() - start
    return {"words_per_second": passes * sum(map(len, sentences)) / seconds,
            **scores(WordVectors(model.wv.index_to_key, model.wv.vectors))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--gensim-runs", type=int, default=2)
    arguments = parser.parse_args()
    for case in [arguments.only] if arguments.only else CASES:
        recipe, changes = CASES[case]
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            result = stemma.pretrain(recipe, corpus=arguments.text, out=run, changes=[
                *COMMON, f"training.method.epochs={arguments.passes}", *changes])
            from stemma.exchange.vectors import open_vectors

            ours = {"words_per_second": result["tokens_per_second"], "loss": result["validation_loss"],
                    "unigram": result["unigram_loss"], **scores(words_only(open_vectors(run)))}
            print(json.dumps({"case": case, "side": "stemma", **ours}), flush=True)
            if case != "glove":
                for seed in range(1, 1 + arguments.gensim_runs):
                    print(json.dumps({"case": case, "side": f"gensim {seed}",
                                      **gensim_run(run, arguments.passes, seed)}), flush=True)


if __name__ == "__main__":
    main()
