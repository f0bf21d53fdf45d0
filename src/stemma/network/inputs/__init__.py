"""The inputs of a network, one file per kind: tokens, segments, vectors, characters, entities, boxes.

An input module is built with its settings, the network's settings, the embedding size and the vocabulary size. It maps
the stream's values of its name, (B, L, ...), or the token ids (`from_ids`), to (B, L, width). A stream may lack an
input: plain text has no vectors.
"""
