"""The encoder of Cluster-Former (CF20 section 3): sliding windows, and clusters across them.

Every window begins with a copy of the question, which sees its own window only, until a cluster
layer takes all copies. Between layers, a document is the states of its tokens, each once, and of
the copies: by eq. 4 q ceil(x / m) + x states. Windows begin at each multiple of the stride that is
a token, so the last may lie within the one before it. Padding follows a text.

Shape letters: B batch, D width, N tokens of the longest document, Q of the longest question,
V windows of the longest document, L tokens of a window (l in the paper), M stride (m).
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_clusterformer.attention import AttentionPlan, parse_layer
from fairseq_clusterformer.clustering import Report

from .encoder import ClusterformerEncoderLayer, EncoderOnlyModel
from .options import listed
from .stack import ClusteredStack, at_once_in


class Reading(NamedTuple):
    """What an encoder makes of questions and their documents."""

    question: Tensor  # the question's states in each window, [B, V, Q, D]
    document: Tensor  # [B, N, D]
    question_padding: Tensor  # bool [B, V, Q], True where there is no token, or no such window
    document_padding: Tensor  # bool [B, N], True where there is no token
    reports: list[Report]  # of the layers that cluster


class ReaderModel(EncoderOnlyModel):
    """What ``--task clusterformer_qa`` trains: an encoder of questions and documents; heads."""

    windows = 10  # of documents that it reads for a question, if no other number is asked for
    structure: Any = None  # how it is given a document's structure; None: it reads none

    def max_positions(self) -> None:
        """A document may have any number of tokens."""

    def starts_and_text(
        self, document_tokens: Tensor, text_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Each ``<s>``, and where a short answer can begin and end, bool [B, N]: ``text_mask``
        (None: everywhere), but at ``<s>``."""
        starts = document_tokens.eq(self.encoder.dictionary.bos())
        return starts, ~starts if text_mask is None else text_mask & ~starts

    def check_questions(self, most: int) -> None:
        """Raise ValueError if questions may not have ``most`` tokens."""


def check_padding(question_tokens: Tensor, document_tokens: Tensor, padding_idx: int) -> None:
    """Raise ValueError for padding before a token."""
    for name, tokens in (("question", question_tokens), ("document", document_tokens)):
        hidden = tokens.eq(padding_idx)
        if (hidden[:, :-1] & ~hidden[:, 1:]).any():
            raise ValueError(f"{name}_tokens: padding before a token; allowed: behind them")


class ReaderEncoder(ClusteredStack, TransformerEncoderBase):
    """RoBERTa's layers, most of them over windows, some across them.

    A layer is a sliding-window layer (eq. 2 and 3), or one of ``cluster_layers``, never the first:
    that takes each token once, and the question's states of every window (eq. 4), and puts them
    back where they were (eq. 9). They attend as the plan says; where ``cluster_attention`` is
    "window", they are sliding-window layers too; where it is "strided", tokens see those of the
    same place in their windows (both CF20 section 4.3). Positions are counted in each window anew;
    with two ``token_types`` a question's tokens have another embedding than a document's.
    """

    def __init__(self, args: Namespace, dictionary: Dictionary, plan: AttentionPlan):
        cfg = TransformerConfig.from_namespace(args)
        cfg.max_source_positions = args.window_positions
        # what RoBERTa has: learned positions, their sum with the embeddings normalised
        cfg.encoder.learned_pos = cfg.layernorm_embedding = True
        words = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        # The first layer has no window below it. CF20 counts from 0 as well: in its table 4, 24 is
        # a multiple of 6 and yet no layer of 24.
        layers = listed(args, "cluster_layers", "layers", args.encoder_layers, first=1)
        self.size, self.stride = args.window_size, args.window_stride
        self.same_place = args.cluster_attention == "strided"
        self.cluster_layers = () if args.cluster_attention == "window" else layers
        across = () if self.same_place else self.cluster_layers
        sparse, numbers = iter(plan.layers), range(args.encoder_layers)
        kinds = tuple(next(sparse) if n in across else parse_layer("full") for n in numbers)
        super().__init__(cfg, dictionary, words, plan=plan._replace(layers=kinds))
        self.embed_scale, self.embed_types = args.embedding_scale, None
        if args.token_types:
            self.embed_types = nn.Embedding(args.token_types, args.encoder_embed_dim)
            nn.init.normal_(self.embed_types.weight, std=0.02)

    def build_encoder_layer(self, cfg):
        return self.build_layer(ClusterformerEncoderLayer, cfg)

    def forward(self, question_tokens: Tensor, document_tokens: Tensor) -> Reading:
        """Encode documents, int64 [B, N], each with its question, int64 [B, Q], padded behind.
        Raises ValueError: padding elsewhere, or windows with more tokens than there are positions.
        """
        check_padding(question_tokens, document_tokens, self.padding_idx)
        longest = question_tokens.size(1) + min(self.size, document_tokens.size(1))
        if longest > self.max_positions():
            given = f"a window of {longest} tokens, {question_tokens.size(1)} of the question"
            raise ValueError(f"{given}; allowed: {self.max_positions()} (--window-positions)")
        at_once = at_once_in(self, document_tokens.device)
        given = question_tokens, document_tokens, self.size, self.stride, self.padding_idx
        windows, places = Windows(*given, at_once), None
        if self.same_place:
            places = Rows(~windows.by_place(windows.padding), at_once)

        def embedded(part: slice) -> Tensor:
            tokens = windows.tokens[:, part]
            rows, words = tokens.flatten(0, 1), None
            if self.embed_types is not None:
                place = torch.arange(rows.size(1), device=rows.device)
                types = self.embed_types((place >= question_tokens.size(1)).long())
                words = self.embed_tokens(rows) + types / self.embed_scale
            return self.forward_embedding(rows, words)[0].unflatten(0, tokens.shape[:2])

        question, document = windows.through(self.layers[0], embedded)
        reports: list[Report] = []
        for number, layer in enumerate(self.layers[1:], 1):
            if number not in self.cluster_layers:
                cut = partial(windows.cut, question, document)
                question, document = windows.through(layer, cut)
                continue
            states = windows.sequence(question, document)
            del question, document  # of a long document, much memory
            if places is not None:
                rows = places.through(layer, partial(windows.by_place, states))
                states = torch.cat([x for _, x in rows], dim=1).transpose(1, 2).flatten(1, 2)
            else:  # eq. 5 to 8
                states, *fields = layer(states.transpose(0, 1), windows.padding)
                states = states.transpose(0, 1)
                reports += self.reports_of(layer, fields)
            question, document = put_back(states, windows.number, windows.stride, windows.length)
        if self.layer_norm is not None:
            question, document = self.layer_norm(question), self.layer_norm(document)
        padding = windows.question_padding, windows.document_padding
        return Reading(question, document, *padding, reports)

    def clusters(self, reading: Reading) -> dict[tuple[int, str], Tensor]:
        """The cluster of each token of one document, int64 [N], by number and label of a layer."""
        found = {}
        windows, length = reading.question.size(1), reading.document.size(1)
        for number, report in zip(self.cluster_layers, reading.reports, strict=False):
            if report.clusters is None:
                continue
            rows = report.clusters.transpose(1, 2)
            _, clusters = put_back(rows, windows, self.stride, length)
            kind = self.layers[number].kinds[0].written
            found |= labelled(number, len(self.layers), kind, clusters)
        return found


def labelled(number: int, of: int, kind: str, clusters: Tensor) -> dict[tuple[int, str], Tensor]:
    """Clusters of one document's tokens [1, N, G] by the labels of a layer and its heads."""
    name, heads = f"layer {number} of layers 0 to {of - 1}, {kind}", clusters[0].t().cpu()
    return {
        (number, name + (f", head {head}" if len(heads) > 1 else "")): of_head
        for head, of_head in enumerate(heads)
    }


class Windows:
    """The windows, of size L and a stride M <= L, of questions, int64 [B, Q], and their documents,
    int64 [B, N]: ``tokens``, of each window with its question, int64 [B, V, Q + L], and what is
    ``padding`` in the sequence without overlaps, bool [B, V (Q + M)]; ``at_once`` as of `Rows`."""

    def __init__(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        size: int,
        stride: int,
        padding_idx: int,
        at_once: int | None = None,
    ):
        self.length, self.stride = document_tokens.size(1), stride
        self.size = min(size, max(self.length, 1))
        self.number = max(1, -(-self.length // stride))  # of a document without tokens, 1
        texts = self._texts(document_tokens, fill=padding_idx)
        beyond = texts[..., :1].eq(padding_idx)
        beyond[:, 0] = False  # of a document without tokens the question is left
        asked = question_tokens.unsqueeze(1).masked_fill(beyond, padding_idx)
        self.tokens = torch.cat([asked, texts], dim=2)  # eq. 1
        self._rows = Rows(self.tokens.ne(padding_idx), at_once)
        self.question_padding = asked.eq(padding_idx)
        self.document_padding = document_tokens.eq(padding_idx)
        self.padding = self.sequence(self.question_padding, self.document_padding, fill=True)

    def through(
        self, layer: nn.Module, windows: Callable[[slice], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A sliding-window layer: the question [B, V, Q, D] and the document [B, N, D], each token
        with its mean over the windows that hold it (eq. 2 and 3; the paper adds two, but more meet
        where L > 2 M); ``windows`` makes some of them, [B, some of V, Q + L, D]. Nothing is
        scattered, so sums are the same in every run on every device."""
        questions, total, first = [], None, 0
        parts = -(-self.size // self.stride)
        for _, x in self._rows.through(layer, windows):
            question, text = x.split([x.size(2) - self.size, self.size], dim=2)
            questions.append(question.clone())  # a view would keep the text
            # the sum of the windows that hold a token: the part j of a window lies in the block
            # that its j-th successor begins with
            text = pad(text, (0, 0, 0, parts * self.stride - self.size))
            text = text.unflatten(2, (parts, self.stride))
            shifted = (pad(text[:, :, j], (0, 0, 0, 0, j, parts - 1 - j)) for j in range(parts))
            added = sum(shifted).flatten(1, 2)
            if total is None:
                beyond = added.size(1) + (self.number - text.size(1)) * self.stride
                total = added.new_zeros(len(added), beyond, added.size(2))
            total[:, first : first + added.size(1)] += added
            first += text.size(1) * self.stride
        token = torch.arange(self.length, device=total.device)
        last_to_begin, last_to_end = token // self.stride, (token - self.size) // self.stride
        holding = last_to_begin - last_to_end.clamp(min=-1)  # windows that hold the token
        total = total[:, : self.length].div_(holding.unsqueeze(-1))
        return torch.cat(questions, dim=1), total

    def _texts(self, document: Tensor, part: slice = slice(None), fill: int = 0) -> Tensor:
        """[B, N, ...] as some windows [B, some of V, L, ...]; `fill` stands beyond it."""
        first, last, _ = part.indices(self.number)
        beyond = (last - 1 - first) * self.stride + self.size
        text = document[:, first * self.stride : first * self.stride + beyond]
        return _lengthened(text, beyond, fill).unfold(1, self.size, self.stride).movedim(-1, 2)

    def cut(self, question: Tensor, document: Tensor, part: slice) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as some of the windows [B, some of V, Q + L, D]."""
        return torch.cat([question[:, part], self._texts(document, part)], dim=2)

    def sequence(self, question: Tensor, document: Tensor, fill: int = 0) -> Tensor:
        """[B, V, Q, ...] and [B, N, ...] as [B, V (Q + M), ...]: each window's question and first
        M tokens (eq. 4); `fill` stands behind the last window's tokens."""
        blocks = _lengthened(document, self.number * self.stride, fill)
        blocks = blocks.unflatten(1, (self.number, self.stride))
        return torch.cat([question, blocks], dim=2).flatten(1, 2)

    def by_place(self, sequence: Tensor, part: slice = slice(None)) -> Tensor:
        """[B, V (Q + M), ...] as rows of the same place in each window, [B, Q + M, V, ...], or
        some of these rows."""
        return sequence.unflatten(1, (self.number, -1)).transpose(1, 2)[:, part]


def put_back(states: Tensor, windows: int, stride: int, length: int) -> tuple[Tensor, Tensor]:
    """The inverse of :meth:`Windows.sequence` (eq. 9), for V windows, stride M and length N."""
    blocks = states.unflatten(1, (windows, -1))
    question, document = blocks.split([blocks.size(2) - stride, stride], dim=2)
    return question, document.flatten(1, 2)[:, :length]


class Rows:
    """R rows that a layer attends within, where ``real``, bool [B, R, T], says that tokens stand;
    those without any are left out. A layer is given ``at_once`` so many tokens (None: all), or one
    row that has more."""

    def __init__(self, real: Tensor, at_once: int | None = None):
        batch, number, length = real.shape
        step = number if at_once is None else max(1, at_once // (batch * length))
        self._portions = []
        for first in range(0, number, step):
            part = slice(first, min(first + step, number))
            own = real[:, part].any(-1)
            hidden = ~real[:, part][own]
            some = bool(own.any())
            self._portions.append((part, own if some else None, hidden if hidden.any() else None))

    def through(
        self, layer: nn.Module, rows: Callable[[slice], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield, portion by portion, which rows, and these [B, some of R, T, D] after an encoder
        layer, 0 where no token is; ``rows`` makes them."""
        for part, own, hidden in self._portions:
            given = rows(part)
            x = torch.zeros_like(given)
            if own is not None:
                out, *_ = layer(given[own].transpose(0, 1), hidden)
                out = out.transpose(0, 1)
                x = x.to(out.dtype)
                x[own] = out if hidden is None else out.masked_fill(hidden[..., None], 0)
            yield part, x


def _lengthened(x: Tensor, length: int, fill: int) -> Tensor:
    return pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.size(1)), value=fill)
