"""Small readers of words, and what they read."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from torch import Tensor

from xlqa.bidaf import BidafReader
from xlqa.qanet import QANetReader
from xlqa.word_reader import WordReader

CLOSE = {"rtol": 0, "atol": 1e-12}
#: subwords, as sentencepiece has them: a blank begins a word
PIECES = " a| b|cd| The|re|ly| (|)| 19|50|s|.|-| |é| 東|京| x|yz| UN| There".split("|")
SIZES = {"encoder_embed_dim": 12, "word_dim": 5, "subword_dim": 6, "letter_dim": 4}
SIZES |= {"letter_filters": 4, "dropout": 0.0}
QANET = {"encoder_layers": 3, "encoder_ffn_embed_dim": 10, "encoder_attention_heads": 4}
QANET |= {"attention_window": 3, "num_clusters": 3, "attention_dropout": 0.0}
QANET |= {"kmeans_bank_size": 200, "kmeans_interval": 1}


def make_task() -> Namespace:
    dictionary = Dictionary()
    for piece in PIECES:
        dictionary.add_symbol(piece.replace(" ", "▁") if piece != " " else "▁")
    texts = [""] * dictionary.nspecial + PIECES
    return Namespace(source_dictionary=dictionary, symbol_texts=texts)


def make(name: str, **changes) -> WordReader:
    """In float64 and evaluation; "bidaf" or "qanet"."""
    model, more = {"bidaf": (BidafReader, {}), "qanet": (QANetReader, QANET)}[name]
    args = Namespace(**{**SIZES, **more, **changes})
    built = model.build_model(args, make_task()).double().eval()
    words = ["There", "ab", "1950s", "(", "un", "xyz"]
    built.encoder.embedding.vectors.set(words, torch.randn(6, args.word_dim).double())
    return built


def tokens(*shape: int) -> Tensor:
    """Random subwords."""
    return torch.randint(4, 4 + len(PIECES), shape)


def ragged() -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Questions and documents, padded behind, and their lengths; ``<s>`` leads a document of one
    paragraph or two, and one has nothing else."""
    asked, lengths = [4, 1, 3, 7, 5], [23, 40, 5, 1, 12]
    question, document = tokens(5, 7), tokens(5, 40)
    document[:, 0] = document[1, 9] = 0
    for row in range(5):
        question[row, asked[row] :] = 1
        document[row, lengths[row] :] = 1
    return question, document, asked, lengths
