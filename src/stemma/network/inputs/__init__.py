"""What a network reads of each position, a file for each kind.

An input is built with its settings, the network's, the embedding's width and the size of the vocabulary: a module that
is called with what a stream has under its name, (B, L, ...), or with the token ids (`from_ids`), and gives
(B, L, width). A stream need not have it: text that is typed has no vectors beside it.
"""
