"""Distances in buckets: which share one, and where each number lands in the scores."""

import pytest
import torch

from stemma.network.position_kinds import BucketedPositionSettings
from stemma.network.relative_bias import RelativePositionBias

HEADS = 3


def build(both_ways: bool, buckets: int = 32, distance: int = 128) -> RelativePositionBias:
    torch.manual_seed(0)
    return RelativePositionBias(BucketedPositionSettings(kind="bucketed", buckets=buckets, distance=distance), HEADS,
                                both_ways)


def test_both_ways_each_side_has_half():
    near = build(both_ways=True)
    behind = near.bucket_of(-torch.arange(400)).tolist()
    assert behind[:8] == list(range(8))  # a bucket each
    # 8 + floor(8 log(n / 8) / log(128 / 8)): edges where 16^(k/8) x 8 is passed
    assert [behind.index(bucket) for bucket in range(8, 16)] == [8, 12, 16, 23, 32, 46, 64, 91]
    assert set(behind[91:]) == {15}
    ahead = near.bucket_of(torch.arange(1, 400)).tolist()
    assert ahead == [16 + bucket for bucket in behind[1:]]


def test_causal_buckets_are_all_for_earlier_keys():
    near = build(both_ways=False)
    behind = near.bucket_of(-torch.arange(400)).tolist()
    assert behind[:16] == list(range(16))
    assert [behind.index(bucket) for bucket in range(16, 32)] == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77,
                                                                  87, 99, 113]
    assert set(behind[113:]) == {31}
    assert near.bucket_of(torch.arange(1, 9)).tolist() == [0] * 8  # what stands in front is not seen anyway


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (1, 9), (4, 7)])
def test_each_score_gets_the_number_of_its_distance(both_ways, queries, keys):
    """The queries stand at the last of the keys' places."""
    near = build(both_ways, buckets=8, distance=6)
    found = near(queries, keys, torch.float32)
    assert found.shape == (1, HEADS, queries, keys)
    for q in range(queries):
        for k in range(keys):
            ahead = k - (keys - queries + q)
            bucket = int(near.bucket_of(torch.tensor(ahead)))
            assert torch.equal(found[0, :, q, k], near.table.weight[bucket])


def test_every_number_learns():
    near = build(both_ways=True, buckets=8, distance=6)
    near(12, 12, torch.float32).sum().backward()
    used = near.table.weight.grad.abs().sum(1) > 0
    assert used.tolist() == [bucket != 4 for bucket in range(8)]  # 4 would be nothing ahead, which counts as behind
