"""Load a model from a run folder, its model/, a supported Hugging Face folder, or ELMo's files. Ignored tensors are
reported."""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from stemma.atomic_files import CHECKSUMS, verify_checksums
from stemma.errors import CorruptFileError, UserError, did_you_mean
from stemma.exchange import families, find_family
from stemma.exchange.elmo import elmo_files, load_elmo
from stemma.exchange.family import Family
from stemma.exchange.folder_checks import (
    check_finite,
    check_own_sizes,
    check_sizes,
    reconcile_family_recipe,
    reconcile_recipe,
)
from stemma.exchange.infer_task_config import infer_task_config, with_recipe_templates
from stemma.exchange.save import GENERATOR, NATIVE_TYPE, RECIPE
from stemma.exchange.tensor_map import from_hf, to_hf
from stemma.exchange.weights import align_memory, read_weights
from stemma.json_files import parse_object, read_object
from stemma.model import Model
from stemma.network.heads import HeadSpec
from stemma.network.network import Network
from stemma.network.ngram_tables import resize_buffers
from stemma.objectives import build_objectives, head_specs
from stemma.pretraining_record import read_record
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.corpus import CorpusSettings
from stemma.schema.overrides import flatten
from stemma.schema.renamed_keys import rename_keys
from stemma.task_config import FILE, TaskConfig, read_task_configs, task_stack
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DECODER_STARTS: tuple[str, ...] = get_args(CorpusSettings.model_fields["decoder_start"].annotation)
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model")


def load(name_or_path: str | Path, device: torch.device | str = "cpu") -> Model:
    """The model in eval mode and fp32, on `device`."""
    folder = resolve_model_folder(name_or_path)
    if not (folder / "config.json").is_file() and (files := elmo_files(folder)) is not None:
        model = load_elmo(*files)
        model.network.to(device)
        return model
    config = _read_config(folder)
    if (folder / CHECKSUMS).is_file():
        verify_checksums(folder, "the model", "copy it again, or save it again from its run; if you changed it on "
                                              f"purpose, delete {CHECKSUMS}.", ("config.json",))
    kind = config.get("model_type")
    family = find_family(kind) if isinstance(kind, str) and kind != NATIVE_TYPE else None
    if kind != NATIVE_TYPE and family is None:
        if (folder / RECIPE).is_file():
            recipe(folder / RECIPE, stored=True)  # raises an error that names the family's plug-in
        raise UserError(f'{folder}/config.json says model_type "{kind}", which is not supported (supported: '
                        f'{", ".join([*families(), NATIVE_TYPE])}).{did_you_mean(str(kind), families())}')
    tokenizer = Tokenizer.load(folder) if any((folder / name).is_file() for name in TOKENIZER_FILES) else None
    model = _load_native(folder, config) if family is None else _load_family(folder, config, family, tokenizer)
    model.tokenizer, model.pretraining = tokenizer, read_record(folder)
    if tokenizer is not None and tokenizer.vocab_size > model.network.vocab_size:
        model.load_warnings.append(f"the tokenizer of {folder} has {tokenizer.vocab_size:,} tokens and the network "
                                   f"has {model.network.vocab_size:,}; the others cannot be used.")
    model.network.to(device)
    return model


def open_model(name_or_path: str | Path, device: torch.device | str = "cpu") -> Model:
    """`load`, with the warnings about the folder logged."""
    model = load(name_or_path, device)
    for text in model.load_warnings:
        logger.warning(text)
    return model


def find_generator(name_or_path: str | Path) -> Path | None:
    """The folder of the generator of an ELECTRA discriminator, if it was saved."""
    folder = resolve_model_folder(name_or_path) / GENERATOR
    return folder if (folder / "config.json").is_file() else None


def resolve_model_folder(name_or_path: str | Path) -> Path:
    """The folder with config.json: this folder, the model/ of this run, or (with the extra `hub`) a hub id."""
    path = Path(name_or_path)
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    if path.is_dir() and elmo_files(path) is not None:
        return path
    if (path / "run.json").is_file():
        raise UserError(f"the run {path} has no model yet; `stemma resume {path}` finishes it.")
    if path.exists():
        raise UserError(f"{path} is no model: it has no config.json; give a run folder, its model/, or a Hugging Face "
                        "model folder.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name_or_path)) and not path.parent.exists():
        return _fetch(str(name_or_path))
    raise UserError(f"there is no model at {path}.")


def _fetch(identifier: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(f'there is no folder {identifier}; to fetch it from the Hugging Face hub: pip install '
                        '"stemma-lm[hub]".') from error
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.bin"]
    try:
        return Path(snapshot_download(identifier, allow_patterns=patterns))
    except Exception as error:
        raise UserError(f"there is no folder {identifier}, and the hub did not give it ({error}).") from error


def _read_config(folder: Path) -> dict[str, Any]:
    return read_object(folder / "config.json", "copy it again.")


def _load_native(folder: Path, config: Mapping[str, Any]) -> Model:
    stored, weights = recipe(folder / RECIPE, stored=True), read_weights(folder)
    check_own_sizes(folder, stored, config, weights)
    section = config.get("network")
    config_values = flatten(rename_keys({"network": section})[0]["network"]) if isinstance(section, dict) else {}
    stored, warnings = reconcile_recipe(folder, stored, config_values, flatten(stored.values["network"]), {})
    task_configs = read_task_configs(folder)
    declared = head_specs(build_objectives(stored))
    declared |= {name: spec for task_config in task_configs.values() for name, spec in task_config.heads.items()}
    heads = config.get("heads", [])
    if unknown := [name for name in heads if name not in declared]:
        raise CorruptFileError(f"{folder}/config.json lists the head {unknown[0]}, which no objective of its {RECIPE} "
                               f"and no task of a {FILE} has; save the model again from its run.")
    network = _empty_network(stored, config, {name: declared[name] for name in heads})
    resize_buffers(network, {name: tensor.shape for name, tensor in weights.items()})
    expected = network.state_dict()
    _check_tensors(folder, expected, weights)
    return _with_weights(stored, network, {name: weights[name] for name in expected},
                         warnings + _unused_tensors(folder, weights, expected), task_configs)


def _load_family(folder: Path, config: Mapping[str, object], family: Family, tokenizer: Tokenizer | None) -> Model:
    problems = family.for_config(config).problems(config)
    if config.get("quantization_config"):
        problems.append(("quantization_config", "quantized weights are not supported; load the full-precision model"))
    if problems:
        raise UserError(f"{folder} holds a model of the family {family.model_type}, of a kind that is not supported",
                        problems)
    weights = read_weights(folder)
    for old, new in family.legacy_names.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    warnings = family.config_warnings(config)
    stored = recipe(folder / RECIPE, stored=True) if (folder / RECIPE).is_file() else None  # first: it names plug-ins
    task_config = _native_task_config(folder, family) or infer_task_config(folder, config, family, warnings)
    task_family = None if task_config is None else family.with_task_head(
        task_config.kind, task_config.name, task_config.heads, task_stack(task_config))
    if task_config is not None and task_family is not None \
            and set(task_family.detect_heads(config, weights)) == set(task_config.heads):
        family = task_family  # otherwise the head is missing: only the body is loaded, and `Model.task_config` raises
    bare = not any(name.startswith(family.prefix) for name in weights)
    check_sizes(folder, family, config, weights, "" if bare else family.prefix)
    heads = family.detect_heads(config, weights)
    removed = [key for head in heads for key in family.removed_keys.get(head, ())]
    if stored is not None:
        model_recipe, differences = reconcile_family_recipe(folder, family, config, stored)
        warnings += differences
    else:
        model_recipe = _family_recipe(family, config, folder, tokenizer, removed)
    declared = head_specs(build_objectives(model_recipe)) if family.variable_class_heads.intersection(heads) else {}
    specs = {name: declared.get(name, family.head_specs[name]) if name in family.variable_class_heads
             else family.head_specs[name] for name in heads}
    network = _empty_network(model_recipe, family.with_defaults(config), specs)
    state = network.state_dict()
    keys = family.tensor_keys(heads, state, bare)
    expected = to_hf(keys, state, model_recipe.settings.network.heads)  # for its names and shapes
    _check_tensors(folder, expected, weights)
    untied = config.get("tie_word_embeddings") is False and "vocabulary" in heads
    copies = dict(family.tied_names(expected, bare))
    _check_tied_tensors(folder, copies, weights, untied)
    _check_zeros(folder, family.zero_tensors, weights)
    known = {*expected, *copies, *family.zero_tensors,
             *(name for name in weights if name.endswith(family.ignored_buffers))}
    warnings += _unused_tensors(folder, weights, known)
    if task_config is not None and not (folder / FILE).is_file():
        task_config = with_recipe_templates(task_config, model_recipe, tokenizer)
    task_configs = {} if task_config is None else {task_config.name: task_config}
    return _with_weights(model_recipe, network, from_hf(keys, weights, state), warnings, task_configs)


def _native_task_config(folder: Path, family: Family) -> TaskConfig | None:
    """The task in tasks.json, if there is one; a model with a family's model_type has at most one task."""
    task_configs = list(read_task_configs(folder).values())
    if not task_configs:
        return None
    first = task_configs[0]
    if len(task_configs) > 1 or family.with_task_head(first.kind, first.name, first.heads, task_stack(first)) is None:
        raise CorruptFileError(f"{folder}/{FILE} has tasks that no model of the family {family.model_type} answers "
                               "like that; it is another model's: copy the whole folder again.")
    return first


def _family_recipe(family: Family, config: Mapping[str, Any], folder: Path, tokenizer: Tokenizer | None,
                   removed: list[str]) -> Recipe:
    """The family's recipe with the values of config.json, and a sequence length that fits the network."""
    base = replace(recipe(family.recipe), size=None)  # the sizes come from config.json
    values = family.to_recipe_values(config)
    if tokenizer is not None:
        values |= {f"tokenizer.{key}": value for key, value in tokenizer.settings().items() if key != "vocab_size"}
    if tokenizer is not None and base.settings.network.decoder is not None and "network.decoder" not in removed:
        default = base.settings.corpus.decoder_start
        values["corpus.decoder_start"] = _decoder_start(folder, config.get("decoder_start_token_id"), default,
                                                        tokenizer)
    limits = (values.get("network.position.maximum"), _sentence_limit(folder), base.settings.corpus.sequence_length)
    values["corpus.sequence_length"] = min(limit for limit in limits if isinstance(limit, int))
    if values.get("network.embedding.segments") in (0, 1):
        values["corpus.pair"] = base.settings.corpus.pair.replace(":1", "")
    before = flatten(base.values)
    changes = {key: value for key, value in values.items() if before.get(key) != value}
    changes |= {"remove": removed} if removed else {}
    base = _finetuned_as_published(base, values)
    try:
        return base.with_changes(changes, origin="config.json")
    except UserError as error:
        raise UserError(f"{folder}: {error.message}", error.problems) from error


def _finetuned_as_published(base: Recipe, values: dict[str, object]) -> Recipe:
    """The recipe with the section [finetuning] of the published size with these layers and this width, or of the
    default size."""
    published, stated = recipe(base.name), flatten(base.values) | values
    for size in published.sizes:
        network = recipe(base.name, size=size).settings.network
        if (network.layers, network.width) == (stated["network.layers"], stated["network.width"]):
            published = recipe(base.name, size=size)
            break
    section = published.values["finetuning"]
    if section == base.values["finetuning"]:
        return base
    removed = [f"finetuning.{key}" for key in base.values["finetuning"] if key not in section]
    return base.with_changes({"remove": removed, "finetuning": section}, published.label)


def _decoder_start(folder: Path, stated: int | None, default: str, tokenizer: Tokenizer) -> str:
    """The special token that starts decoder inputs; if several have this id, the family's default."""
    ids = {name: tokenizer.special_token_ids.get(name) for name in (default, *DECODER_STARTS)}
    if stated is None:
        return default
    for name, token_id in ids.items():
        if token_id == stated:
            return name
    raise UserError(f"{folder}/config.json says decoder_start_token_id {stated}, and the tokenizer has that token for "
                    f"none of {', '.join(DECODER_STARTS)}; set it to the one that this model was trained with.")


def _sentence_limit(folder: Path) -> int | None:
    """The maximum length that sentence-transformers uses for this model; its embeddings were trained with it."""
    try:
        limit: int | None = parse_object((folder / "sentence_bert_config.json").read_bytes()).get("max_seq_length")
        return limit
    except (OSError, ValueError):
        return None


def _empty_network(recipe: Recipe, config: Mapping[str, Any], heads: Mapping[str, HeadSpec]) -> Network:
    vocabulary = config.get("vocab_size") or recipe.settings.tokenizer.vocab_size
    with torch.device("meta"):  # random weights would be replaced at once
        network = Network(recipe.settings.network, vocabulary, heads)
    if not any(True for _ in network.buffers()):
        return network
    with torch.random.fork_rng(devices=[]):  # some buffers are computed in the constructor and not stored
        return Network(recipe.settings.network, vocabulary, heads)


def _check_tensors(folder: Path, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse missing tensors and wrong shapes."""
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise CorruptFileError(f"{_count_names(missing)} missing in {folder}: {_join_names(missing)}; the checkpoint "
                               "is incomplete, or its config.json is another model's.")
    problems = [(name, f"is {_shape(weights[name])} and should be {_shape(tensor)}")
                for name, tensor in expected.items() if weights[name].shape != tensor.shape
                or weights[name].is_floating_point() != tensor.is_floating_point()]
    if problems:
        raise CorruptFileError(f"the weights in {folder} do not fit its config.json; one of the two is another "
                               "model's", problems[:8])
    check_finite(folder, expected, weights)


def _check_tied_tensors(folder: Path, tied: Mapping[str, str], weights: Mapping[str, Tensor], untied: bool) -> None:
    """Tied matrices that are stored twice must be equal, since the network has one tensor for both."""
    for copy, original in tied.items():
        if untied if copy not in weights else not torch.equal(weights[copy], weights[original]):
            raise UserError(f"{folder} was trained with {copy} untied from {original}; only tied models are supported.")


def _check_zeros(folder: Path, names: Iterable[str], weights: Mapping[str, Tensor]) -> None:
    for name in names:
        if name in weights and weights[name].any():
            raise UserError(f"{folder} was trained with {name}, which is added to all scores; only models whose "
                            f"{name} is zero are supported.")


def _unused_tensors(folder: Path, names: Iterable[str], known: Container[str]) -> list[str]:
    unused = sorted(name for name in names if name not in known)
    warning = f"{_count_names(unused)} of {folder} not used by this network: {_join_names(unused)}"
    return [warning] if unused else []


def _with_weights(recipe: Recipe, network: Network, weights: Mapping[str, Tensor], warnings: list[str],
                  task_configs: dict[str, TaskConfig]) -> Model:
    state = {name: align_memory(tensor.float() if tensor.is_floating_point() else tensor)  # integer buffers stay so
             for name, tensor in weights.items()}
    network.load_state_dict(state, strict=True, assign=True)
    return Model(recipe, None, network.eval().requires_grad_(True), warnings, task_configs)


def _count_names(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''}"


def _join_names(names: list[str]) -> str:
    return f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"


def _shape(tensor: Tensor) -> str:
    kind = "" if tensor.is_floating_point() else f" of {tensor.dtype}".replace("torch.", "")
    return "x".join(map(str, tensor.shape)) + kind
