"""Static word vectors: words with one vector each, in the files of word2vec, GloVe and fastText."""
