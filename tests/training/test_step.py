"""The training step as a module: with DistributedDataParallel and with activation checkpointing, its gradients are
those of one process."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import toy_tasks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn.parallel import DistributedDataParallel

from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.exchange.load import load
from stemma.network.attention.self_attention import SelfAttention
from stemma.network.block import Block
from stemma.network.cache import Memory
from stemma.network.dropout import Dropout
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import recipe
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_loader import FinetuneLoader
from stemma.tasks.runs.finetune_run import SPLITS, input_encoder_for, read_split, task_dataset
from stemma.tasks.runs.multitask import multitask
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.training_step import TrainingStep

STEPS, PROCESSES = 3, 2
SMALL = ["network.width=16", "network.heads=2", "network.feedforward=24", "network.layers=2", "network.dropout=0",
         "network.attention.dropout=0", "corpus.sequence_length=16", "training.batch_size=4"]
RECIPES = {"bert": [], "electra": ["network.generator.multiplier=0.5"],
           "xlnet": ["network.inner_dropout=0", "network.output_dropout=0", "network.memory.length=8"],
           "unilm": [], "universal-transformer": [], "t5": ["network.inner_dropout=0", "network.output_dropout=0",
                                                             "network.decoder.layers=2"]}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("step")
    words = ["the", "a", "cat", "dog", "tree", "sees", "likes", "big", "small", "old", "runs", "to", "house", "and"]
    sentences = [" ".join(words[(7 * line + 3 * word * word) % len(words)] for word in range(5 + line % 6)) + "."
                 for line in range(240)]
    (folder / "text.txt").write_text("\n".join(line + ("\n" if index % 6 == 5 else "")
                                               for index, line in enumerate(sentences)))
    return folder


def prepared_multitask_steps(folder):
    """As `prepared_steps`, for a multi-task network with two heads whose tasks alternate."""
    run = folder / "several"
    if not run.is_dir():
        model = toy_tasks.save_model(folder / "start")
        for kind in ("classify", "tag"):
            toy_tasks.write_sets(folder, kind, 24, 8)
        plan = folder / "plan.toml"
        plan.write_text("".join(f'[tasks.{kind}]\nkind = "{kind}"\ntrain = "{kind}-train.jsonl"\n'
                                f'dev = "{kind}-dev.jsonl"\n' for kind in ("classify", "tag")))
        multitask(plan, model, run, steps=1)
    model = load(run)
    for module in model.network.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
        if isinstance(module, SelfAttention):
            module.dropout = 0.0
    objectives = {name: build_task_objective(card, input_encoder_for(card, model.tokenizer), 0) for name,
                  card in model.task_configs.items()}
    datasets = [task_dataset(objectives[name], {part: read_split(run, part, card) for part in SPLITS}, 8)
                for name, card in model.task_configs.items()]
    loader = FinetuneLoader(model, datasets, 3, 48)
    steps = [loader.get_batch(step, 48, 0.5) for step in range(STEPS)]
    assert len({step.objectives[0].name for step in steps}) == 2
    return model.network, loader.objectives, steps


def prepared_steps(folder, name):
    """A network, its objectives, and the batches of its first steps."""
    if name == "multitask":
        return prepared_multitask_steps(folder)
    resolved = recipe(f"{name}@tiny", [*SMALL, *RECIPES[name]])
    corpus_folder = folder / name
    if not corpus_folder.is_dir():
        settings = resolved.settings.tokenizer
        tokenizer = train_tokenizer((folder / "text.txt").read_text().splitlines(), settings.kind, 200,
                                    lowercase=settings.lowercase, roles=resolved.settings.special_tokens())
        build_corpus([str(folder / "text.txt")], tokenizer, corpus_folder)
    corpus = Corpus.open(corpus_folder)
    resolved = adopt_tokenizer(resolved, corpus)
    objectives = build_objectives(resolved)
    torch.manual_seed(0)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    loader = PretrainLoader(resolved, corpus, objectives, seed=1)
    steps = [loader.get_batch(step, loader.sequence_length_at(0.9), 0.9) for step in range(STEPS)]
    loader.close()
    return network, objectives, steps


def accumulate_gradients(step, steps, rank=0, processes=1, slices=2):
    """Add up the gradients of all steps, each computed in slices. Of several processes, each computes its own rows."""
    memory = {}
    for index, prepared in enumerate(steps):
        tasks = tuple(objective.name for objective in prepared.objectives)
        batch = replace(prepared.batch, objectives=tasks)
        rows_of_rank = batch.slices(-(-batch.num_rows // processes))[rank]
        state = memory.get(prepared.sampler_key) if batch.continues_previous else None
        memories = []
        for at, piece in enumerate(rows_of_rank.slices(-(-rows_of_rank.num_rows // slices))):
            torch.manual_seed(100 * index + 10 * rank + at)  # the generator's samples depend on it
            rows = slice(at * (-(-rows_of_rank.num_rows // slices)), None)
            result = step(piece, None if state is None else state.rows(slice(rows.start, rows.start + piece.num_rows)))
            (result.total * processes).backward()  # DistributedDataParallel averages, and these are parts of a sum
            memories += [result.state] if isinstance(result.state, Memory) else []
        if memories:
            memory[prepared.sampler_key] = Memory.concatenate(memories)


def gradients_of(network):
    return {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in network.named_parameters()}


def one_process(folder, name):
    """The gradients of both ranks computed in one process: the same slices with the same random numbers."""
    network, objectives, steps = prepared_steps(folder, name)
    step = TrainingStep(network, objectives).train()
    for rank in range(PROCESSES):
        accumulate_gradients(step, steps, rank, PROCESSES)
    return {name: gradient / PROCESSES for name, gradient in gradients_of(network).items()}


def work(rank, folder, names, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=PROCESSES)
    for name in names:
        network, objectives, steps = prepared_steps(folder, name)
        step = DistributedDataParallel(TrainingStep(network, objectives).train(), find_unused_parameters=True)
        accumulate_gradients(step, steps, rank, PROCESSES)
        if rank == 0:
            torch.save(gradients_of(network), f"{out}/{name}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def distributed(text, tmp_path_factory):
    """Two processes train all recipes, one after the other."""
    names, out = ["bert", "electra", "xlnet", "unilm", "t5", "multitask"], tmp_path_factory.mktemp("gradients")
    for name in names:
        prepared_steps(text, name)  # builds the corpora before two processes need them
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(work, (text, names, out), nprocs=PROCESSES)
    return out


@pytest.mark.parametrize("name", ["bert", "electra", "xlnet", "unilm", "t5", "multitask"])
def test_two_processes_have_the_gradients_of_one(distributed, text, name):
    result, expected = torch.load(distributed / f"{name}.pt"), one_process(text, name)
    assert sum(bool(gradient.any()) for gradient in expected.values()) > 10
    for key, gradient in expected.items():
        torch.testing.assert_close(result[key], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "xlnet", "universal-transformer", "t5"])
def test_activation_checkpointing_gives_the_same_gradients(text, name):
    network, objectives, steps = prepared_steps(text, name)
    accumulate_gradients(TrainingStep(network, objectives).train(), steps)
    expected = {key: gradient.clone() for key, gradient in gradients_of(network).items()}
    checkpointed, objectives, steps = prepared_steps(text, name)
    calls = []
    for module in checkpointed.modules():
        if isinstance(module, Block):
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    apply_activation_checkpointing(checkpointed, check_fn=lambda module: isinstance(module, Block))
    accumulate_gradients(TrainingStep(checkpointed, objectives).train(), steps)
    result = {key.replace("_checkpoint_wrapped_module.", ""): gradient
              for key, gradient in gradients_of(checkpointed).items()}
    for key, gradient in expected.items():
        torch.testing.assert_close(result[key], gradient, rtol=1e-5, atol=1e-7)
    # two slices, each computed forward and again in the backward pass
    assert len(calls) >= 4 * STEPS * len(network.encoder.blocks)
