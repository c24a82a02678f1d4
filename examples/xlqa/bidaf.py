"""``--arch bidaf_reader``: BiDAF (Seo et al. 2017), as XLQA has it.

Shape letters: B batch, W words of the longest document, D width.
"""

from dataclasses import dataclass

import torch
from fairseq.models import register_model
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_clusterformer.models.options import option, register_sizes

from .word_reader import (
    ContextQueryAttention,
    Reading,
    WordEmbedding,
    WordReader,
    WordReaderOptions,
    Words,
)


@dataclass
class BidafReaderConfig(WordReaderOptions):
    """Options; by default it has the report's sizes with letters, and subwords as well."""

    dropout: float = option(0.2, "dropout probability")
    encoder_embed_dim: int = option(100, "width of the words, and of each direction of an LSTM")


class TwoWayLSTM(nn.Module):
    """An LSTM of width D from either side, over the words that there are; with dropout behind
    each layer."""

    def __init__(self, inputs: int, width: int, layers: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        how = {"batch_first": True, "bidirectional": True}
        how["dropout"] = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(inputs, width, layers, **how)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, W, inputs] to [B, W, 2 D]; 0 for padding, bool [B, W]."""
        lengths = (~padding).sum(1).clamp(min=1).cpu()  # a row of padding has one word of it
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(found, batch_first=True, total_length=x.size(1))
        out = out.masked_fill(padding.unsqueeze(-1), 0.0)
        return dropout(out, self.dropout, self.training)


class BidafEncoder(nn.Module):
    """Embedding, context-query attention, and LSTMs before and after it."""

    def __init__(self, task, args):
        super().__init__()
        self.dictionary = task.source_dictionary
        width = args.encoder_embed_dim
        self.embedding = WordEmbedding(task, args, width=width, joint=False)
        self.contextual = TwoWayLSTM(self.embedding.width, width, 1, args.dropout)
        self.attention = ContextQueryAttention(2 * width, matches=args.word_matches)
        self.modelling = TwoWayLSTM(self.attention.width, width, 2, args.dropout)
        self.ends = TwoWayLSTM(2 * width, width, 1, args.dropout)
        self.head_width = self.attention.width + 2 * width
        self.dropout = args.dropout

    def read(self, asked: Words, words: Words) -> Reading:
        """See :class:`WordReader`."""
        question, document = (
            self.contextual(self.embedding(own), own.padding) for own in (asked, words)
        )
        both = self.attention(document, question, words, asked)
        both = dropout(both, self.dropout, self.training)
        modelled = self.modelling(both, words.padding)
        ends = self.ends(modelled, words.padding)
        begin, end = (torch.cat([both, of_side], dim=-1) for of_side in (modelled, ends))
        return Reading(words, begin, end, [])

    def clusters(self, reading: Reading) -> dict[tuple[int, str], Tensor]:
        """No layer clusters."""
        return {}


@register_model("bidaf_reader", dataclass=BidafReaderConfig)
class BidafReader(WordReader):
    """A :class:`BidafEncoder`, and what it answers."""

    @classmethod
    def build_encoder(cls, args, task) -> BidafEncoder:
        return BidafEncoder(task, args)


register_sizes(
    "bidaf_reader",
    # learns on a laptop's processor
    tiny={"encoder_embed_dim": 64, "word_dim": 100},
    # the report's baseline: vectors of words alone, and with characters
    xlqa={"subword_dim": 0, "letter_filters": 0},
    xlqa_letters={"subword_dim": 0},
)
