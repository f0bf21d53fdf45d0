"""Task embeddings (ERNIE 2.0): the embedding of the task is added at every position of a row."""

import pytest
import torch

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.exchange.build import build
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_objectives, group_objectives
from stemma.training.pretrain_loader import PretrainLoader

SMALL = ["network.width=16", "network.heads=2", "network.feedforward=24", "network.dropout=0.0",
         "network.attention.dropout=0.0", "training.batch_size=4", "corpus.sequence_length=32"]


def network_of(tasks: int):
    torch.manual_seed(0)
    return build("bert@tiny", 40, [*SMALL, f"network.embedding.tasks={tasks}"]).network


def test_task_embeddings_are_added_per_row_before_the_norm():
    network = network_of(3)
    ids, tasks = torch.arange(12).reshape(3, 4), torch.tensor([2, 0, 1])
    with torch.no_grad():
        result = network.embedding(Stream(ids, task_ids=tasks))
        embedding = network.embedding
        summed = (embedding.tokens(ids) + embedding.segments.weight[0] + embedding.position.table.weight[:4]
                  + embedding.tasks.weight[tasks][:, None])
        torch.testing.assert_close(result, embedding.norm(summed))
        plain = network.embedding(Stream(ids))
    torch.testing.assert_close(plain[1], result[1])  # the default is task 0
    assert (plain[0] - result[0]).abs().max() > 1e-3


def test_rows_and_device_moves_include_task_ids():
    stream = Stream(torch.zeros(4, 3, dtype=torch.long), task_ids=torch.tensor([0, 1, 2, 3]))
    assert stream.rows(slice(1, 3)).task_ids.tolist() == [1, 2]
    assert stream.to("meta").task_ids.device.type == "meta"


def test_task_embeddings_are_counted_with_the_heads():
    with_vectors, without = network_of(5), network_of(0)
    assert with_vectors.parameter_count() == without.parameter_count() + 5 * 16
    assert with_vectors.parameter_count(heads=False) == without.parameter_count(heads=False)


def test_a_task_id_without_an_embedding_is_refused():
    for changes in (["objective.masked_lm.task_id=2", "network.embedding.tasks=2"], ["objective.masked_lm.task_id=0"]):
        with pytest.raises(UserError) as caught:
            recipe_loading.recipe("bert@tiny", changes)
        assert caught.value.problems[0][0].startswith("objective.masked_lm.task_id")
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe("ernie-2@tiny", ["network.embedding.tasks=4"])
    assert {key for key, _ in caught.value.problems} == {"network.embedding.tasks = 4"}


def test_each_batch_has_the_task_id_of_its_objective(corpus_folder):
    changes = [*SMALL, "network.embedding.tasks=2", "objective.masked_lm.task_id=1",
               "objective.next_sentence.task_id=0"]
    recipe = recipe_loading.recipe("bert@tiny", changes)
    assert len(group_objectives(recipe, build_objectives(recipe))) == 2, "task ids do not separate the groups"
    loader = PretrainLoader(recipe, Corpus.open(corpus_folder), build_objectives(recipe), 0)
    task_ids = set()
    for step in range(12):
        prepared = loader.get_batch(step, 32)
        tasks = prepared.batch.streams["encoder"].task_ids
        assert tasks.tolist() == [prepared.objectives[0].settings.task_id] * 4
        task_ids.add(int(tasks[0]))
    validation_task_ids = {objectives[0].name: int(batch.streams["encoder"].task_ids[0])
                           for objectives, batch in loader.validation_batches(32)}
    loader.close()
    assert task_ids == {0, 1} and validation_task_ids == {"masked_lm": 1, "next_sentence": 0}
