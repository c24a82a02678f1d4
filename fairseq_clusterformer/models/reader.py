"""The encoder of Cluster-Former (CF20 section 3): sliding windows, and clusters across them.

Shape letters: B batch, N tokens of the longest document, Q of the longest question, V windows of
the longest document, L tokens of a window, M stride, D width.
"""

from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from fairseq_clusterformer.attention import AttentionPlan, parse_layer
from fairseq_clusterformer.clustering import Report

from .encoder import ClusterformerEncoderLayer
from .encoder_only import EncoderOnlyModel
from .stack import ClusteredStack, at_once_in, unpack
from .windows import Rows, Windows, put_back


class Reading(NamedTuple):
    """What an encoder makes of questions and their documents."""

    question: Tensor  # the question's states in each window, [B, V, Q, D]
    document: Tensor  # [B, N, D]
    question_padding: Tensor  # bool [B, V, Q], True where there is no token, or no such window
    document_padding: Tensor  # bool [B, N], True where there is no token
    reports: list[Report]  # of the layers that cluster


class ReaderModel(EncoderOnlyModel):
    """What ``--task clusterformer_qa`` trains: an encoder of questions and documents, and heads.

    Attributes:
        windows: of documents that it reads for a question, if no other number is asked for.
        structure: how it is given a document's structure; None: it reads none.
    """

    windows = 10
    structure: Any = None

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

    A layer is a sliding-window layer (eq. 2 and 3), or one of ``cluster_layers``: that takes each
    token once, and the question's states of every window (eq. 4), and puts them back where they
    were (eq. 9). Positions are counted in each window anew.

    Args:
        args: fairseq's encoder's.
        size, stride: L and M.
        cluster_layers: their numbers, from 0; the first layer is none of them.
        cluster_attention: a kind of attention; "window": these layers are sliding-window layers
            too; "strided": they attend among the tokens that have the same place in their windows
            (both CF20 section 4.3).
        plan: its attention, for each of these layers.
        token_types: 2: a question's tokens have another embedding than a document's; 0: none.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        *args,
        size: int,
        stride: int,
        cluster_layers: tuple[int, ...],
        cluster_attention: str,
        plan: AttentionPlan,
        token_types: int = 0,
    ):
        self.size, self.stride = size, stride
        self.same_place = cluster_attention == "strided"
        self.cluster_layers = () if cluster_attention == "window" else cluster_layers
        sparse = iter(plan.layers)
        across = () if self.same_place else self.cluster_layers
        numbers = range(cfg.encoder.layers)
        kinds = tuple(next(sparse) if n in across else parse_layer("full") for n in numbers)
        super().__init__(cfg, *args, plan=plan._replace(layers=kinds))
        self.embed_types = None
        if token_types:
            self.embed_types = nn.Embedding(token_types, self.embed_tokens.embedding_dim)
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
        by_layer: dict[int, list[Report]] = {}
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
                by_layer[id(layer)] = unpack(fields)
            of_document = {"stride": windows.stride, "length": windows.length}
            question, document = put_back(states, windows=windows.number, **of_document)
        if self.layer_norm is not None:
            question, document = self.layer_norm(question), self.layer_norm(document)
        if self.training:
            self.observe(by_layer)
        padding = windows.question_padding, windows.document_padding
        return Reading(question, document, *padding, [*chain(*by_layer.values())])

    def clusters(self, reading: Reading) -> dict[tuple[int, str], Tensor]:
        """The cluster of each token of one document, int64 [N], by number and label of a layer."""
        found = {}
        windows, length = reading.question.size(1), reading.document.size(1)
        for number, report in zip(self.cluster_layers, reading.reports, strict=False):
            if report.clusters is None:
                continue
            rows = report.clusters.transpose(1, 2)
            _, clusters = put_back(rows, windows=windows, stride=self.stride, length=length)
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
