"""The Huffman tree of hierarchical softmax (arXiv:1310.4546, section 2.1): frequent words have short paths."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray


class _Node:
    __slots__ = ("count", "index", "left", "right")

    def __init__(self, count: int, index: int, left: _Node | None = None, right: _Node | None = None):
        self.count, self.index, self.left, self.right = count, index, left, right

    def __lt__(self, other: _Node) -> bool:
        return self.count < other.count


def huffman_paths(counts: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """((words, longest path) signs: 1 left, -1 right, 0 after the end; the inner nodes), from the root. Words with
    count 0 have no path. Nodes are numbered in the order in which they are made, as by gensim."""
    words = np.flatnonzero(counts > 0)
    heap = [_Node(int(counts[word]), index) for index, word in enumerate(words)]
    heapq.heapify(heap)
    for index in range(len(words) - 1):
        left, right = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, _Node(left.count + right.count, len(words) + index, left, right))
    paths: dict[int, tuple[list[float], list[int]]] = {}
    stack: list[tuple[_Node, list[float], list[int]]] = [(heap[0], [], [])] if heap else []
    while stack:
        node, signs, nodes = stack.pop()
        if node.left is None or node.right is None:
            paths[node.index] = signs, nodes
            continue
        inner = [*nodes, node.index - len(words)]
        stack += [(node.left, [*signs, 1.0], inner), (node.right, [*signs, -1.0], inner)]
    longest = max((len(signs) for signs, _ in paths.values()), default=0)
    all_signs = np.zeros((len(counts), longest), np.float32)
    all_nodes = np.zeros((len(counts), longest), np.int64)
    for index, (signs, nodes) in paths.items():
        all_signs[words[index], :len(signs)], all_nodes[words[index], :len(nodes)] = signs, nodes
    return all_signs, all_nodes
