"""Modified Kneser-Ney smoothing, literally as in Chen & Goodman 1998 (TR-10-98), sections 2.7, 3 and 4.1: dictionaries
of n-grams and one probability at a time. Documents begin with `START`, which is never predicted."""

import math
from collections import Counter, defaultdict

START = "<s>"


class KneserNey:
    """`texts`: lists of tokens that end with their end token. `vocabulary`: every token that may be predicted."""

    def __init__(self, texts, order, vocabulary, discounts=None):
        self.order, self.vocabulary = order, list(vocabulary)
        self.counts = {length: Counter() for length in range(1, order + 1)}
        for text in texts:
            padded = [START, *text]
            for length in range(1, order + 1):
                for i in range(1, len(padded)):  # the last token of the n-gram; START is never one
                    if i - length + 1 >= 0:
                        self.counts[length][tuple(padded[i - length + 1:i + 1])] += 1
        # N1+(. w_{i-n+2} ... w_i): the number of different words before an n-gram
        before = {length: defaultdict(set) for length in range(1, order)}
        for length in range(1, order):
            for ngram in self.counts[length + 1]:
                before[length][ngram[1:]].add(ngram[0])
        for length in range(1, order):  # nothing comes before START: there the count itself
            self.counts[length] = Counter({ngram: count if ngram[0] == START else len(before[length][ngram])
                                           for ngram, count in self.counts[length].items()})
        self.discounts = discounts or {length: self.estimate(length) for length in range(1, order + 1)}
        self.following = {length: defaultdict(dict) for length in range(1, order + 1)}
        for length, counts in self.counts.items():
            for ngram, count in counts.items():
                self.following[length][ngram[:-1]][ngram[-1]] = count

    def estimate(self, length):
        """D1, D2, D3+ (equation 26)."""
        n = Counter(self.counts[length].values())
        if not (n[1] and n[2] and n[3]):
            return (0.5, 1.0, 1.5)
        y = n[1] / (n[1] + 2 * n[2])
        values = tuple(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
        return values if all(0 < value <= k for k, value in enumerate(values, 1)) else (0.5, 1.0, 1.5)

    def probability(self, token, context):
        """p_KN(token | context), the interpolated form (equation 25); `context` has at most order - 1 tokens."""
        context = tuple(context)[-(self.order - 1):] if self.order > 1 else ()
        if START in context:
            context = context[max(i for i, t in enumerate(context) if t == START):]
        return self._probability(token, context)

    def _probability(self, token, context):
        length = len(context) + 1
        lower = self._probability(token, context[1:]) if context else 1 / len(self.vocabulary)
        following = self.following[length].get(context)
        if not following:
            return lower
        d = self.discounts[length]
        count, total = following.get(token, 0), sum(following.values())
        n = [sum(c == 1 for c in following.values()), sum(c == 2 for c in following.values()),
             sum(c >= 3 for c in following.values())]
        gamma = sum(d_k * n_k for d_k, n_k in zip(d, n, strict=True)) / total
        discount = 0 if count == 0 else d[min(count, 3) - 1]
        return max(count - discount, 0) / total + gamma * lower

    def log_probability(self, text):
        """Of a whole text, without START."""
        padded = [START, *text]
        return sum(math.log(self.probability(padded[i], padded[:i])) for i in range(1, len(padded)))
