"""Small readers of words, their task, and what several tests check of them."""

import math
from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
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
    built.encoder.embedding.vectors.set(words, torch.randn(6, args.__dict__["word_dim"]).double())
    return built


def of_size(name: str) -> tuple[WordReader, Namespace]:
    """A reader of a named size, and its options."""
    args = Namespace()
    ARCH_CONFIG_REGISTRY[name](args)
    return ARCH_MODEL_REGISTRY[name].build_model(args, make_task()), args


def assert_all_learn(model: WordReader) -> None:
    """All parameters but the words' vectors have finite gradients."""
    for name, parameter in model.named_parameters():
        if name == "encoder.embedding.vectors.vectors":
            assert not parameter.requires_grad
        else:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


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


def assert_rows_alone(model, question: Tensor, document: Tensor, mask: Tensor) -> None:
    """A document is in any batch what it is alone, with as much padding as there may be."""
    lengths, asked = document.ne(1).sum(1).tolist(), question.ne(1).sum(1).tolist()
    together, extra = model(question, document, mask)
    for row, (length, number) in enumerate(zip(lengths, asked, strict=True)):
        part = (slice(row, row + 1), slice(length))
        alone, own = model(question[row : row + 1, :number], document[part], mask[part])
        for name in ("start", "end", "paragraph", "type", "slots"):
            mine, theirs = (getattr(x, name) for x in (together, alone))
            if name in ("start", "end", "paragraph"):
                assert (mine[row, length:] == -math.inf).all()
                mine = mine[:, :length]
            torch.testing.assert_close(mine[row], theirs[0], **CLOSE)
        mine, theirs = (x["reading"] for x in (extra, own))
        torch.testing.assert_close(mine.document[part], theirs.document, **CLOSE)
        got = mine.question[row, 0, :number]
        torch.testing.assert_close(got, theirs.question[0, 0], **CLOSE)
