"""The training step as a module: wrapped by DistributedDataParallel, and with blocks that are computed twice, its
gradients are those of one process."""

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
    (folder / "text.txt").write_text("\n".join(line + ("\n" if number % 6 == 5 else "")
                                               for number, line in enumerate(sentences)))
    return folder


def several_tasks(folder):
    """The same of a network with two heads, whose tasks take turns."""
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
    learners = {name: build_task_objective(card, input_encoder_for(card, model.tokenizer), 0) for name,
                card in model.task_configs.items()}
    lessons = [task_dataset(learners[name], {part: read_split(run, part, card) for part in SPLITS}, 8)
               for name, card in model.task_configs.items()]
    supply = FinetuneLoader(model, lessons, 3, 48)
    steps = [supply.get_batch(step, 48, 0.5) for step in range(STEPS)]
    assert len({step.objectives[0].name for step in steps}) == 2
    return model.network, supply.objectives, steps


def prepared_steps(folder, name):
    """A network, its objectives, and the batches of its first steps."""
    if name == "multitask":
        return several_tasks(folder)
    chosen = recipe(f"{name}@tiny", [*SMALL, *RECIPES[name]])
    place = folder / name
    if not place.is_dir():
        settings = chosen.settings.tokenizer
        tokenizer = train_tokenizer((folder / "text.txt").read_text().splitlines(), settings.kind, 200,
                                    lowercase=settings.lowercase, roles=chosen.settings.special_tokens())
        build_corpus([str(folder / "text.txt")], tokenizer, place)
    corpus = Corpus.open(place)
    chosen = adopt_tokenizer(chosen, corpus)
    objectives = build_objectives(chosen)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    supply = PretrainLoader(chosen, corpus, objectives, seed=1)
    steps = [supply.get_batch(step, supply.sequence_length_at(0.9), 0.9) for step in range(STEPS)]
    supply.close()
    return network, objectives, steps


def trained(step, steps, rank=0, processes=1, slices=2):
    """The gradients of all steps together, each computed in slices; of several processes, each computes its rows."""
    memory = {}
    for number, prepared in enumerate(steps):
        tasks = tuple(objective.name for objective in prepared.objectives)
        batch = replace(prepared.batch, objectives=tasks)
        own = batch.slices(-(-batch.num_rows // processes))[rank]
        state = memory.get(prepared.sampler_key) if batch.continues_previous else None
        kept = []
        for at, piece in enumerate(own.slices(-(-own.num_rows // slices))):
            torch.manual_seed(100 * number + 10 * rank + at)  # a generator draws: the same in any number of processes
            rows = slice(at * (-(-own.num_rows // slices)), None)
            found = step(piece, None if state is None else state.rows(slice(rows.start, rows.start + piece.num_rows)))
            (found.total * processes).backward()  # gradients are averaged, and these are shares of a sum
            kept += [found.state] if isinstance(found.state, Memory) else []
        if kept:
            memory[prepared.sampler_key] = Memory.concatenate(kept)


def gradients_of(network):
    return {name: torch.zeros_like(each) if each.grad is None else each.grad
            for name, each in network.named_parameters()}


def one_process(folder, name):
    """As two processes would do it, one after the other: the same slices with the same draws."""
    network, objectives, steps = prepared_steps(folder, name)
    step = TrainingStep(network, objectives).train()
    for rank in range(PROCESSES):
        trained(step, steps, rank, PROCESSES)
    return {name: gradient / PROCESSES for name, gradient in gradients_of(network).items()}


def work(rank, folder, names, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=PROCESSES)
    for name in names:
        network, objectives, steps = prepared_steps(folder, name)
        step = DistributedDataParallel(TrainingStep(network, objectives).train(), find_unused_parameters=True)
        trained(step, steps, rank, PROCESSES)
        if rank == 0:
            torch.save(gradients_of(network), f"{out}/{name}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def distributed(text, tmp_path_factory):
    """Two processes on this machine train all recipes, one after the other."""
    names, out = ["bert", "electra", "xlnet", "unilm", "t5", "multitask"], tmp_path_factory.mktemp("gradients")
    for name in names:
        prepared_steps(text, name)  # the corpora are there before two processes want them
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(work, (text, names, out), nprocs=PROCESSES)
    return out


@pytest.mark.parametrize("name", ["bert", "electra", "xlnet", "unilm", "t5", "multitask"])
def test_two_processes_have_the_gradients_of_one(distributed, text, name):
    found, expected = torch.load(distributed / f"{name}.pt"), one_process(text, name)
    assert sum(bool(gradient.any()) for gradient in expected.values()) > 10
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "xlnet", "universal-transformer", "t5"])
def test_blocks_that_are_computed_again_have_the_same_gradients(text, name):
    network, objectives, steps = prepared_steps(text, name)
    trained(TrainingStep(network, objectives).train(), steps)
    expected = {key: gradient.clone() for key, gradient in gradients_of(network).items()}
    again, objectives, steps = prepared_steps(text, name)
    calls = []
    for module in again.modules():
        if isinstance(module, Block):
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    apply_activation_checkpointing(again, check_fn=lambda module: isinstance(module, Block))
    trained(TrainingStep(again, objectives).train(), steps)
    found = {key.replace("_checkpoint_wrapped_module.", ""): gradient for key, gradient in gradients_of(again).items()}
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-5, atol=1e-7)
    assert len(calls) >= 4 * STEPS * len(network.encoder.blocks)  # two slices, forward and once more on the way back
