"""`stemma pretrain` and `stemma resume`: a run from its folder on disk to the finished model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.atomic_files import atomic_folder, check_output_path
from stemma.checksummed_files import verify_file, write_file, write_object
from stemma.corpus.corpus import Corpus
from stemma.corpus.translation_direction import write_directions
from stemma.device import accepts_device
from stemma.errors import UserError, pluralize
from stemma.pretraining_record import PretrainingRecord, read_record
from stemma.recipe_loading import Recipe, recipe
from stemma.text.readers import plugin_readers
from stemma.text.tokenizer import Tokenizer
from stemma.training.budget import Budget
from stemma.training.callbacks import accepts_callbacks
from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, locate_target
from stemma.training.revisions import RevisionSaver, list_revisions, parse_word_counts
from stemma.training.run_folder import (
    MODEL,
    RECIPE,
    RESULT,
    RunConfig,
    TextReadingOptions,
    create_run,
    is_corpus,
    read_run,
    resolve_corpus_argument,
)
from stemma.training.run_lock import finished_result, lock_new_run, lock_run

if TYPE_CHECKING:
    from stemma.model import Model
    from stemma.training.trainer import Trainer

logger = logging.getLogger(__name__)

# The work of a run other than pre-training: called with the run folder and whether to show progress.
RunBody = Callable[[Path, bool], dict[str, Any]]


@accepts_device
@accepts_callbacks
def pretrain(recipe_or_name: Recipe | str, corpus: str | Path | Sequence[str], out: str | Path, *,
             steps: int | None = None, tokens: int | None = None, minutes: float | None = None,
             init_from: str | Path | None = None, vectors: str | Path | None = None,
             encoder_from: str | Path | None = None, decoder_from: str | Path | None = None, seed: int = 0,
             changes: Sequence[str] = (), reading: TextReadingOptions | None = None, overwrite: bool = False,
             target: str | Path | Sequence[str] = (), tensorboard: bool = False, device: str | None = None,
             callbacks: Sequence[object] = (), checkpoint_words: str | Sequence[int | str] = (),
             show_progress: bool = False) -> dict[str, Any]:
    """Pre-train a recipe on a corpus or on raw text; with `target`, on two aligned files. Returns the result that
    `--json` prints. `vectors`: a file of word vectors, for the embedding; `encoder_from`, `decoder_from`: language
    models that these parts start from. `callbacks` are called after every step (`stemma.Callback`). `checkpoint_words`
    ("1M,2M") saves the model at these numbers of words read, in `revisions/`.

        stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000)["validation_loss"]
    """
    run = Path(out)
    check_output_path(run, overwrite)
    resolved_recipe = recipe(recipe_or_name, changes) if isinstance(recipe_or_name, str) else recipe_or_name
    halves = {part: _absolute(path) for part, path in (("encoder", encoder_from), ("decoder", decoder_from))
              if path is not None}
    if vectors is not None and (init_from is not None or halves):
        raise UserError("--vectors starts the embedding of a new model, and --from starts from a trained one; leave "
                        "one of them out.")
    if init_from is not None and halves:
        raise UserError(f"--from starts the whole network, and --{next(iter(halves))}-from a part of it; leave one of "
                        "them out.")
    if init_from is None and resolved_recipe.settings.training.fresh:
        raise UserError("training.fresh re-initializes the top layers of a model; name the model with --from, or leave "
                        "it out.")
    budget = Budget.from_options(steps, tokens, minutes, resolved_recipe.settings.training.steps)
    word_counts = parse_word_counts(checkpoint_words) if checkpoint_words or checkpoint_words == "" else []
    method = resolved_recipe.settings.training.method
    if word_counts and method is not None and not method.has_revisions:
        raise UserError(f"{resolved_recipe.label} has no model before its training ends, so --checkpoint-words cannot "
                        "save one; leave it out.")
    folder, text = resolve_corpus_argument(_paths(corpus))
    target_files = locate_target(resolved_recipe, folder, text, _paths(target))
    start = None if init_from is None else _absolute(init_from)
    config = RunConfig(folder, text, budget, seed, start, reading or TextReadingOptions(), tensorboard=tensorboard,
                       target=target_files, split_first=True, checkpoint_words=word_counts,
                       vectors=check_vectors(resolved_recipe, vectors), halves=halves)
    if folder:
        opened = Corpus.open(folder)
        resolved_recipe = adopt_tokenizer(resolved_recipe, opened)
        config = replace(config, fingerprint=opened.fingerprint)
    create_run(run, resolved_recipe, config, overwrite)
    return start_run(run, show_progress)


def _absolute(model: str | Path) -> str:
    """A model as run.json has it: an absolute path, or a hub id."""
    return str(Path(model).absolute()) if Path(model).exists() else str(model)


def check_vectors(resolved: Recipe, vectors: str | Path | None) -> str | None:
    """The vector file of a run, as run.json has it. The width is checked when the file is read."""
    if vectors is None:
        if resolved.settings.network.embedding.fixed:
            logger.warning(f"{resolved.label} is made for static word vectors (--vectors FILE); without them its "
                           "embedding starts at random and is trained.")
        return None
    if not Path(vectors).is_file():
        raise UserError(f"there is no vector file {vectors}; name a file of word2vec, GloVe or fastText.")
    if (kind := resolved.settings.tokenizer.kind) != "word":
        raise UserError(f"--vectors are of whole words, and {resolved.label} has pieces of words (tokenizer.kind = "
                        f"{kind}); set tokenizer.kind=word.")
    return str(Path(vectors).absolute())


def start_run(run: Path, show_progress: bool, body: RunBody | None = None) -> dict[str, Any]:
    """Execute a new run whose folder is on disk."""
    with lock_new_run(run):
        return (body or _train)(run, show_progress)


def _paths(paths: str | Path | Sequence[str]) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def resume(out: str | Path, *, show_progress: bool = False, body: RunBody | None = None) -> dict[str, Any]:
    """Continue an interrupted run; for a finished one, return its result."""
    run = Path(out)
    if (result := finished_result(run)) is not None:
        return result
    with lock_run(run):
        return (body or _train)(run, show_progress)


@dataclass(frozen=True)
class OpenRun:
    """An opened run: its trainer, ready to continue, and the steps that finish it."""

    run: Path
    config: RunConfig
    recipe: Recipe
    corpus: Corpus
    trainer: Trainer

    def finish(self, metrics: dict[str, object]) -> dict[str, Any]:
        """Write the model and the result."""
        result = self.save(metrics)[1]
        write_object(self.run / RESULT, result)
        return result

    def save(self, metrics: dict[str, object]) -> tuple[Model, dict[str, Any]]:
        """Write the model; returns it with the result. The run is finished once the result is written, too."""
        result = {"run": str(self.run), **metrics}
        if counts := self.config.checkpoint_words:
            words = self.trainer.state.words
            if missed := [f"{count:,}" for count in counts if count > words]:
                logger.warning(f"the run read {words:,} words, so it has no revision at {', '.join(missed)} words; "
                               "train longer, or choose smaller numbers.")
            result |= {"words": words, "revisions": [revision.name for revision in list_revisions(self.run)]}
        self.trainer.network.eval()
        return self.write_model(self.run / MODEL, metrics), result

    def write_revision(self, path: Path) -> None:
        """Write the model during training, which goes on with the same heads as before. It is validated for its
        record, since a resumed run does not have the losses of earlier validations."""
        network, heads = self.trainer.network, set(self.trainer.network.heads)
        self.write_model(path, self.trainer.validate())
        for name in set(network.heads) - heads:  # a pooler that only the saved model has
            del network.heads[name], network.head_specs[name]

    def write_model(self, path: Path, metrics: Mapping[str, Any]) -> Model:
        """Write the model as it is now, in Hugging Face layout; `metrics` are its losses."""
        from stemma.exchange.save import write_model
        from stemma.model import Model
        from stemma.training.init_from import with_pooler

        model = Model(self.recipe, self.corpus.tokenizer, self.trainer.network, pretraining=self._record(metrics))
        if self.config.start and self.config.task is None:
            model = with_pooler(model, self.config.start)
        with atomic_folder(path, overwrite=True) as folder:
            write_model(model, folder)
            write_directions(self.corpus, folder)
        return model

    def _record(self, metrics: Mapping[str, Any]) -> PretrainingRecord | None:
        """The record that is saved beside the weights. A fine-tune keeps that of its start; None if that is unknown, as
        for a run that goes on from a published checkpoint."""
        from stemma.exchange.load import resolve_model_folder

        if self.config.task is not None:
            stored = self.config.task.get("pretraining")
            return None if stored is None else PretrainingRecord.from_json(stored)
        tokens = self.trainer.state.tokens
        if self.config.start is None:
            return PretrainingRecord.of_run(tokens, metrics)
        earlier = None
        with suppress(UserError):  # its folder may be gone by now
            earlier = read_record(resolve_model_folder(self.config.start))
        return None if earlier is None else PretrainingRecord.of_run(tokens, metrics, earlier)


def _train(run: Path, show_progress: bool) -> dict[str, Any]:
    training = open_run(run, show_progress)
    return training.finish(training.trainer.train())


def open_run(run: Path, show_progress: bool) -> OpenRun:
    """Load everything that a run needs from its folder."""
    resolved_recipe, config = read_run(run)
    corpus = _open_corpus(run, resolved_recipe, config)
    if config.task is None:  # a fine-tune keeps the tokenizer settings of the model, which may have unused rows
        resolved_recipe = adopt_tokenizer(resolved_recipe, corpus)

    import torch  # late: the run folder is already complete

    from stemma.objectives import build_network, build_objectives, check_requirements, drop_unsupported
    from stemma.training.checkpoints import latest_checkpoint
    from stemma.training.curriculum import check_curriculum
    from stemma.training.embedding_vectors import start_embedding
    from stemma.training.init_from import init_from_model
    from stemma.training.init_halves import init_from_language_models
    from stemma.training.padding_check import padding_warning
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.stall_note import StallNote, stall_remedy
    from stemma.training.trainer import Trainer

    is_new = latest_checkpoint(run) is None
    if is_new:  # a resumed run keeps its objectives
        resolved_recipe, warnings = drop_unsupported(resolved_recipe, corpus)
        for text in warnings:
            logger.warning(text)
        fields = sorted({name for objective in build_objectives(resolved_recipe)
                         for name in objective.requirements().annotations} |
                        {field for name, settings in resolved_recipe.settings.network.inputs.items()
                         for field in settings.fields(name)})
        replace(read_run(run)[1], marks={name: corpus.annotation_digest(name) for name in fields}).write(run)
    elif changed := [name for name, mark in config.marks.items() if corpus.annotation_digest(name) != mark]:
        raise UserError(f"the {changed[0]} of {corpus.path} are not those that {run} was started with, so it cannot go "
                        "on exactly; annotate the corpus as before, or start a new run with `stemma pretrain --from`.")
    check_requirements(resolved_recipe, corpus)
    check_curriculum(resolved_recipe, config.budget)
    torch.manual_seed(config.seed)
    if config.start and is_new:
        resolved_recipe, network = init_from_model(config.start, resolved_recipe, corpus)
    elif config.halves and is_new:
        resolved_recipe, network = init_from_language_models(config.halves, resolved_recipe, corpus)
    else:
        network = build_network(resolved_recipe, tokenizer=corpus.tokenizer if is_new else None)
        if config.vectors and is_new:
            start_embedding(network.embedding, corpus.tokenizer, config.vectors)
    write_file(run / RECIPE, resolved_recipe.to_toml(plugin_readers(config.text)))
    loader = PretrainLoader(resolved_recipe, corpus, build_objectives(resolved_recipe), config.seed)
    trainer = Trainer(run, resolved_recipe, loader, network, config.budget, config.seed, config.tensorboard,
                      show_progress)
    if config.task is None and (warning := loader.dropped_pairs_warning()):  # a fine-tune has already shown it
        logger.warning(warning)
    counts = resolved_recipe.settings.network.depth.counts  # counting reads documents, not rows
    if is_new and not counts and (warning := padding_warning(loader)):
        logger.warning(warning)
    if show_progress:
        logger.info(f"{resolved_recipe.label} · {network.parameter_count() / 1e6:.1f} M parameters · "
                    f"{corpus.num_tokens / 1e6:.2f} M tokens · {str(trainer.precision).removeprefix('torch.')} on "
                    f"{pluralize(trainer.threads, 'core')}")
    if config.task is None and (remedy := stall_remedy(resolved_recipe)):
        trainer.callbacks.add(StallNote(remedy))
    opened = OpenRun(run, config, resolved_recipe, corpus, trainer)
    if config.checkpoint_words:
        loader.counts_words = True
        trainer.callbacks.add(RevisionSaver(config.checkpoint_words, opened.write_revision))
    return opened


def _open_corpus(run: Path, recipe: Recipe, config: RunConfig) -> Corpus:
    """The corpus of the run; built from raw text at the first start, and fixed from then on."""
    if config.text:
        corpus = _cached_corpus(config) or _build_corpus(run, recipe, config)
    else:
        assert config.corpus is not None
        corpus = Corpus.open(run / config.corpus)
    if config.fingerprint is None:
        replace(config, corpus=str(corpus.path.resolve()), fingerprint=corpus.fingerprint).write(run)
    elif config.fingerprint != corpus.fingerprint:
        raise UserError(f"the corpus of {run} is not the one it was started with (its text or its vocabulary "
                        "changed); bring the old one back, or start a new run with `stemma pretrain --from`.")
    return corpus


def _cached_corpus(config: RunConfig) -> Corpus | None:
    """The corpus built at the first start, if the cache still has it; the text itself may be gone."""
    if config.corpus is None or not is_corpus(config.corpus):
        return None
    with suppress(UserError):  # damaged: it is built again
        return Corpus.open(config.corpus)
    return None


def _build_corpus(run: Path, recipe: Recipe, config: RunConfig) -> Corpus:
    """Build a corpus from raw text, with the tokenizer of the model to start from or one trained for the recipe."""
    for path in (Path(path) for path in (*config.text, *config.target)):
        if path.parent == run.resolve():  # a copy of a stream
            verify_file(path, "start the run again in another folder.")
    start = config.start or next(iter(config.halves.values()), None)
    if start is None:
        return build_or_load_corpus(config.text, recipe, config.reading, target=config.target,
                                    split_first=config.split_first)
    from stemma.exchange.load import resolve_model_folder

    return build_or_load_corpus(config.text, recipe, config.reading, Tokenizer.load(resolve_model_folder(start)),
                                config.target)
