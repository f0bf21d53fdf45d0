"""T5's relative position buckets: the distances in each bucket, and the bias of each score."""

import pytest
import torch

from stemma.network.position_kinds import BucketedPositionSettings
from stemma.network.relative_bias import RelativePositionBias

HEADS = 3


def build(bidirectional: bool, buckets: int = 32, distance: int = 128) -> RelativePositionBias:
    torch.manual_seed(0)
    return RelativePositionBias(BucketedPositionSettings(kind="bucketed", buckets=buckets, distance=distance), HEADS,
                                bidirectional)


def test_bidirectional_buckets_are_split_between_both_sides():
    bias = build(bidirectional=True)
    behind = bias.bucket_of(-torch.arange(400)).tolist()
    assert behind[:8] == list(range(8))  # one bucket per distance
    # 8 + floor(8 log(n / 8) / log(128 / 8)): edges where 16^(k/8) x 8 is passed
    assert [behind.index(bucket) for bucket in range(8, 16)] == [8, 12, 16, 23, 32, 46, 64, 91]
    assert set(behind[91:]) == {15}
    ahead = bias.bucket_of(torch.arange(1, 400)).tolist()
    assert ahead == [16 + bucket for bucket in behind[1:]]


def test_causal_buckets_are_all_for_earlier_keys():
    bias = build(bidirectional=False)
    behind = bias.bucket_of(-torch.arange(400)).tolist()
    assert behind[:16] == list(range(16))
    assert [behind.index(bucket) for bucket in range(16, 32)] == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77,
                                                                  87, 99, 113]
    assert set(behind[113:]) == {31}
    assert bias.bucket_of(torch.arange(1, 9)).tolist() == [0] * 8  # later keys are masked


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (1, 9), (4, 7)])
def test_each_score_gets_the_bias_of_its_distance(bidirectional, queries, keys):
    """The queries are the last positions of the keys."""
    bias = build(bidirectional, buckets=8, distance=6)
    result = bias(queries, keys, torch.float32)
    assert result.shape == (1, HEADS, queries, keys)
    for q in range(queries):
        for k in range(keys):
            ahead = k - (keys - queries + q)
            bucket = int(bias.bucket_of(torch.tensor(ahead)))
            assert torch.equal(result[0, :, q, k], bias.table.weight[bucket])


def test_every_used_bucket_gets_a_gradient():
    bias = build(bidirectional=True, buckets=8, distance=6)
    bias(12, 12, torch.float32).sum().backward()
    used = bias.table.weight.grad.abs().sum(1) > 0
    assert used.tolist() == [bucket != 4 for bucket in range(8)]  # 4 would be distance 0 ahead
