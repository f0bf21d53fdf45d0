import math

import pytest
import torch
from literal.transformer import sinusoid

from stemma import recipe_loading
from stemma.network.embedding import InputEmbedding
from stemma.network.inputs_outputs import Stream


def build(*changes: str) -> InputEmbedding:
    settings = recipe_loading.recipe("bert@tiny", ["network.width=12", "network.heads=2", *changes]).settings.network
    torch.manual_seed(0)
    return InputEmbedding(settings, 30, settings.parts()["encoder"]).eval()


IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])


def test_token_segment_and_position_are_summed_and_normalized():
    embedding = build()
    norm = torch.nn.functional.layer_norm
    for row in range(2):
        for position in range(5):
            vector = (embedding.tokens.weight[IDS[row, position]] + embedding.segments.weight[SEGMENTS[row, position]]
                      + embedding.position.table.weight[position])
            expected = norm(vector, (12,), embedding.norm.weight, embedding.norm.bias, 1e-12)
            result = embedding(Stream(input_ids=IDS, segment_ids=SEGMENTS))[row, position]
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_without_segment_ids_every_position_is_in_segment_0():
    embedding = build()
    torch.testing.assert_close(embedding(Stream(input_ids=IDS)), embedding(Stream(input_ids=IDS,
                                                                                  segment_ids=torch.zeros_like(IDS))))
    none = build("network.embedding.segments=0", "corpus.pair=start A separator B separator")
    assert none.segments is None


def test_explicit_position_ids_are_used():
    embedding = build()
    counted = torch.arange(5).expand(2, 5)
    torch.testing.assert_close(embedding(Stream(input_ids=IDS)), embedding(Stream(input_ids=IDS, position_ids=counted)))
    moved = embedding(Stream(input_ids=IDS, position_ids=counted + 3))
    longer = torch.cat([IDS[:, :3], IDS], dim=1)
    torch.testing.assert_close(moved, embedding(Stream(input_ids=longer))[:, 3:])


def test_a_position_offset_leaves_the_first_rows_unused():
    embedding = build("network.position.offset=2", "network.embedding.norm=false")
    assert embedding.position.table.num_embeddings == 514
    result = embedding(Stream(input_ids=IDS))[0, 0]
    expected = embedding.tokens.weight[3] + embedding.segments.weight[0] + embedding.position.table.weight[2]
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("width", [12, 16])
def test_sinusoidal_positions_match_the_formula(width):
    embedding = build("network.position.kind=sinusoidal", "network.position.maximum=1000", f"network.width={width}",
                      "network.embedding.norm=false")
    for positions in (None, torch.tensor([[7, 0, 300, 1, 2]] * 2)):
        result = embedding.position(IDS, positions)
        for position, index in enumerate([0, 1, 2, 3, 4] if positions is None else positions[0].tolist()):
            expected = torch.tensor(sinusoid(index, width))
            vector = result[position] if result.dim() == 2 else result[0, position]
            torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-4)


def test_the_embedding_may_be_factorized():
    embedding = build("network.embedding.width=4")
    assert embedding.tokens.weight.shape == (30, 4) and embedding.position.table.weight.shape[1] == 4
    assert embedding(Stream(input_ids=IDS)).shape == (2, 5, 12)
    narrow = build("network.embedding.width=4", "network.embedding.norm=false")
    inner = (narrow.tokens(IDS) + narrow.segments.weight[0] + narrow.position.table.weight[:5])
    torch.testing.assert_close(narrow(Stream(input_ids=IDS)), narrow.project(inner))


def test_embeddings_are_scaled_by_the_square_root_of_their_width():
    embedding = build("network.embedding.scale=true", "network.embedding.norm=false", "network.position.kind=none",
                      "network.embedding.width=9")
    inner = embedding.tokens(IDS) * math.sqrt(9) + embedding.segments.weight[0]
    torch.testing.assert_close(embedding(Stream(input_ids=IDS)), embedding.project(inner))
