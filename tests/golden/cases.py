"""The cases: commands on tiny data whose results are compared. {data} is the folder that `texts.py` writes, {models}
the folder of models that the base version pre-trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

Command = tuple[str, ...]

STEPS = "20"
EXACT = ("training.precision=fp32", "training.threads=1", "training.log_every=1")
SMALL = (*EXACT, "tokenizer.vocab_size=300", "corpus.sequence_length=32", "training.batch_size=4",
         "training.validate_every=10")
PARALLEL = ("transformer", "universal-transformer", "universal-transformer-seq2seq")  # recipes for text pairs
COUNTED = ("ngram", "two-sided-ngram", "word2vec", "glove", "fasttext")  # with a method of their own, without precision
ANNOTATED = ("ernie", "ernie-2")  # recipes for a corpus with dialogues, queries, phrases and entities
MODELS = ("bert", "albert", "electra", "xlnet", "gpt", "gpt2", "bart", "t5", "unilm", "prefix-lm", "transformer",
          "transformer-xl", "modernbert")  # start models of other cases


@dataclass(frozen=True)
class Case:
    name: str
    commands: tuple[Command, ...] = ()
    init: str | None = None  # instead of commands: the recipe whose initial weights are compared

    @property
    def models(self) -> list[str]:
        """The names in MODELS that its commands use."""
        words = {word for command in self.commands for word in command}
        return [name for name in MODELS if f"{{models}}/{name}" in words]


def pretrain(recipe: str, *changes: str, out: str = "run", corpus: str = "", steps: str = STEPS,
             options: Sequence[str] = ()) -> Command:
    corpus = corpus or ("{data}/pairs.tsv" if recipe in PARALLEL else "{data}/text.txt")
    small = [change for change in SMALL if recipe not in COUNTED or not change.startswith("training.precision")]
    return ("pretrain", f"{recipe}@tiny", "--corpus", corpus, "--out", out, "--steps", steps, *options, *small,
            *changes)


def finetune(kind: str, model: str = "bert", *changes: str, out: str = "run", options: Sequence[str] = ()) -> Command:
    return ("finetune", kind, "--model", f"{{models}}/{model}", "--train", f"{{data}}/{kind}-train.jsonl", "--dev",
            f"{{data}}/{kind}-dev.jsonl", "--out", out, "--steps", "12", *options, *EXACT, "training.batch_size=4",
            *changes)


def finetune_seq2seq(model: str) -> Command:
    return ("finetune", "seq2seq", "--model", f"{{models}}/{model}", "--train", "{data}/pairs.tsv", "--dev",
            "{data}/pairs-dev.tsv", "--out", "run", "--steps", "12", "--beams", "2", *EXACT, "training.batch_size=4")


def model_commands(name: str) -> tuple[Command, ...]:
    return (pretrain(name, out=name, steps="4"),)


def cases(recipes: Collection[str]) -> list[Case]:
    return [*(Case(f"init/{name}", init=name) for name in recipes),
            *(Case(f"pretrain/{name}", _recipe(name)) for name in recipes),
            *_training_options(), *_continued_pretraining(), *_finetuning(), *_several_runs(), *_inference()]


def _recipe(name: str) -> tuple[Command, ...]:
    if name not in ANNOTATED:
        return (pretrain(name),)
    return (("tokenizer", "train", "{data}/text.txt", "--for", name, "--vocab-size", "300", "--out", "tokenizer"),
            ("corpus", "build", "{data}/text.txt", "--dialogue", "{data}/talks.jsonl", "--relevance",
             "{data}/clicks.tsv", "--tokenizer", "tokenizer", "--workers", "1", "--out", "corpus"),
            ("corpus", "annotate", "corpus", "--phrases", "mine", "--min-count", "8", "--threshold", "0.3",
             "--entities", "{data}/entities.txt"),
            pretrain(name, corpus="corpus"))


def _training_options() -> list[Case]:
    """Training options that no recipe sets."""
    changes = {
        "muon": ("bert", "training.optimizer.kind=muon"), "lamb": ("bert", "training.optimizer.kind=lamb"),
        "adamax": ("bert", "training.optimizer.kind=adamax"),
        "adafactor": ("bert", "training.optimizer.kind=adafactor"),
        "slices": ("bert", "training.micro_batch_size=2"),
        "slices-pairs": ("transformer", "training.micro_batch_size=2"),
        "phases": ("bert", "corpus.first_phase={share=0.5, sequence_length=16}"),
        "best": ("bert", "training.keep_best=true", "training.validate_every=4"),
        "bf16": ("bert", "training.precision=bf16"),
        "adaptive": ("transformer-xl", "network.embedding.cutoffs=[20, 50]"),
        "windows": ("gpt3", "network.attention.windows=[8, 0]"),
        "padding": ("bert", "corpus.short_probability=1.0"),
    }
    return [Case(f"option/{name}", (pretrain(*arguments),)) for name, arguments in changes.items()] + [
        Case("option/average", (pretrain("bert", "training.checkpoint_every=5", "training.keep_checkpoints=4"),
                                ("average", "run", "--last", "3")))]


def _continued_pretraining() -> list[Case]:
    """Pre-training from a model; parameters that the model lacks are initialized randomly."""
    starts = {"bert": ("bert",), "roberta": ("bert",), "structbert": ("bert",), "electra": ("electra",),
              "xlnet": ("xlnet",), "transformer-xl": ("transformer-xl",), "bart": ("bart",), "gpt2": ("gpt2",),
              "albert": ("albert",), "ernie-2": ("bert",), "spanbert": ("bert", "training.fresh=1")}
    changes = [change for change in SMALL if not change.startswith("tokenizer.")]
    return [Case(f"from/{name}", (("pretrain", f"{name}@tiny", "--from", f"{{models}}/{model}", "--corpus",
                                   "{data}/domain.txt", "--out", "run", "--steps", "8", *changes, *more),))
            for name, (model, *more) in starts.items()]


def _finetuning() -> list[Case]:
    kinds = ("classify", "pair", "regress", "choice", "qa", "tag", "rank")
    commands = {kind: finetune(kind) for kind in kinds}
    commands |= {"classify-gpt": finetune("classify", "gpt"), "pair-gpt": finetune("pair", "gpt"),
                 "choice-gpt2": finetune("choice", "gpt2"), "classify-electra": finetune("classify", "electra"),
                 "qa-xlnet": finetune("qa", "xlnet"), "tag-albert": finetune("tag", "albert"),
                 "regress-modernbert": finetune("regress", "modernbert"),
                 "frozen": finetune("classify", "bert", "training.frozen=2"),
                 "unfreeze": finetune("classify", "bert", "training.unfreeze=4"),
                 "fresh": finetune("classify", "bert", "training.fresh=1", "training.layer_decay=0.8"),
                 "features": finetune("tag", "bert", options=("--features",)),
                 "find-rate": finetune("classify", options=("--find-rate",)),
                 "trials": finetune("classify", options=("--rates", "1e-4,1e-3", "--restarts", "2", "--ensemble"))}
    predicted = {"classify", "qa", "tag"}
    with_head = [Case(f"finetune/{name}", (command, *(_predict(name) if name in predicted else ())))
                 for name, command in commands.items()]
    return with_head + [Case(f"finetune/seq2seq-{model}", (finetune_seq2seq(model),))
                        for model in ("transformer", "bart", "t5", "unilm", "prefix-lm", "gpt2")]


def _predict(kind: str) -> tuple[Command, ...]:
    held_out = f"{{data}}/{kind}-dev.jsonl"
    return ("predict", "run", held_out), ("evaluate", "run", "--data", held_out, "--out", "evaluation")


def _several_runs() -> list[Case]:
    lab = ("--corpus", "{data}/text.txt", "--out", "lab", "--seeds", "1", "--task", "classify", "--train",
           "{data}/classify-train.jsonl", "--dev", "{data}/classify-dev.jsonl", "--epochs", "1", *SMALL,
           "training.warmup_steps=2")
    return [Case("several/multitask", (("multitask", "{data}/tasks.toml", "--model", "{models}/bert", "--out", "run",
                                        "--steps", "24", *EXACT, "training.batch_size=4"),)),
            Case("several/pipeline", (("pipeline", "{data}/stages.toml", "--out", "run"),)),
            Case("several/compare", (("compare", "bert@tiny", "electra@tiny", "--tokens", "2000", *lab),)),
            Case("several/ablate", (("ablate", "structbert@tiny", "--tokens", "1000", *lab),))]


def _inference() -> list[Case]:
    """Inference with the start models."""
    generation = ("--tokens", "12", "--seed", "1")
    commands: dict[str, Command] = {
        "fill": ("fill", "{models}/bert", "Tom Okafor [MASK] a wooden [MASK]."),
        "fill-modernbert": ("fill", "{models}/modernbert", "Tom Okafor [MASK] a wooden boat."),
        **{f"generate-{name}": ("generate", f"{{models}}/{name}", "Ada Bohm finds", *generation)
           for name in ("gpt", "gpt2", "transformer-xl", "xlnet", "unilm", "prefix-lm")},
        "beams": ("generate", "{models}/gpt2", "Ada Bohm finds", "--beams", "3", "--tokens", "12"),
        **{f"translate-{name}": ("translate", f"{{models}}/{name}", "{data}/sources.txt", "--beams", "3", "--crop",
                                 "--max-extra", "4") for name in ("transformer", "bart")},
        **{f"perplexity-{name}": ("perplexity", f"{{models}}/{name}", "{data}/held-out.txt", "--by", "document")
           for name in ("gpt2", "transformer-xl", "xlnet")},
        "embed": ("embed", "{models}/bert", "{data}/sentences.txt", "--out", "vectors.npy"),
        "inspect": ("inspect", "{models}/gpt2", "--text", "Ada Bohm finds a wooden boat."),
    }
    return [Case(f"use/{name}", (command,)) for name, command in commands.items()]
