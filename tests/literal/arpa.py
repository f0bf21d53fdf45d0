"""An ARPA file as a dictionary, and Katz's back-off recursion on it, one probability at a time."""


class ArpaFile:
    def __init__(self, text):
        self.ngrams, length = {}, 0
        for line in text.split("\n"):
            if line.endswith("-grams:"):
                length = int(line[1:line.index("-")])
            elif length and line.strip() and not line.startswith("\\"):
                fields = line.split()
                weight = float(fields[length + 1]) if len(fields) > length + 1 else 0.0
                self.ngrams[tuple(fields[1:length + 1])] = float(fields[0]), weight
        self.order = length

    def log10(self, word, context):
        """log10 p(word | context); `context` has the oldest word first."""
        context = tuple(context)[-(self.order - 1):] if self.order > 1 else ()
        if (*context, word) in self.ngrams:
            return self.ngrams[(*context, word)][0]
        if not context:
            return self.ngrams[("<unk>",)][0]
        return self.ngrams.get(context, (0, 0.0))[1] + self.log10(word, context[1:])

    def sentence(self, words):
        """log10 of each word and of the end."""
        padded = ["<s>", *words, "</s>"]
        return [self.log10(padded[i], padded[:i]) for i in range(1, len(padded))]
