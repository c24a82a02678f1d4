"""More tokens for each row, by the layers of our decoder and what they keep of those before."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from fairseq_clusterformer.attention import Batch, any_padding

from .decoder import ClusterformerDecoder

State = dict[str, dict[str, Tensor | None]]


class Kept(Protocol):
    """What layers keep of the tokens before.

    Attributes:
        state: of fairseq's modules, by their names; the batch comes first in each tensor.
        tokens: how many were seen, padding included.
    """

    state: State
    tokens: int


@dataclass
class DecoderState:
    """:class:`Kept`, empty at first."""

    state: State = field(default_factory=dict)
    tokens: int = 0


@torch.no_grad()
def decode(
    decoder: ClusterformerDecoder,
    tokens: Tensor,
    cache: Kept,
    encoder_out: dict[str, list[Tensor]] | None = None,
) -> Tensor:
    """Features [B, n, D] of n more tokens, which the cache then holds; read at once, or one by one
    by a decoder that keeps documents apart.

    fairseq's own step takes the same position for all rows; here each row counts its own real
    tokens, so that a row padded on the left is the row alone.

    Args:
        tokens: int64 [B, n].
        encoder_out: as fairseq's encoder returns it.

    Raises:
        ValueError: a decoder that sees the future.
    """
    if decoder.leaks_future:
        raise ValueError(
            "cluster_rule is leaking-chunk, by which later tokens change earlier outputs: it "
            "cannot generate; allowed: recent"
        )
    hidden = tokens.eq(decoder.padding_idx)
    # A step on a GPU is too short to wait for its answer.
    padded = tokens.is_cuda or any_padding(hidden) is not None
    places, documents = _places(decoder, tokens, ~hidden, padded, cache)
    most = cache.tokens + tokens.size(1)
    if documents is None:
        x = _embed(decoder, tokens, places)
        batch = Batch(hidden if padded else None)
        cache.tokens = most
        return _through(decoder, x, batch, cache.state, encoder_out)
    steps = []
    for i in range(tokens.size(1)):
        one = slice(i, i + 1)
        batch = Batch(hidden[:, one] if padded else None, documents[:, one])
        x = _embed(decoder, tokens[:, one], places[:, one])
        steps.append(_through(decoder, x, batch, cache.state, encoder_out))
    cache.tokens = most
    return torch.cat(steps, dim=1)


def _places(
    decoder: ClusterformerDecoder,
    tokens: Tensor,
    real: Tensor,
    padded: bool,
    cache: Kept,
) -> tuple[Tensor, Tensor | None]:
    """Numbers of the tokens in their rows or documents, from 0, int64 [1 or B, n]; and those of
    the documents [B, n], where an end-of-sentence symbol begins one."""
    seen = cache.state.setdefault("seen", {})
    if not (padded or seen or decoder.separate_documents):
        first = cache.tokens
        return torch.arange(first, first + tokens.size(1), device=tokens.device)[None], None
    before = tokens.new_full((len(tokens), 1), cache.tokens)
    count = seen.get("real", before) + real.long().cumsum(1)
    places, documents = count - 1, None
    seen["real"] = count[:, -1:]
    if decoder.separate_documents:
        begins = tokens.eq(decoder.dictionary.eos())
        documents = seen.get("documents", before.new_zeros(before.shape)) + begins.cumsum(1)
        begun = torch.cat([seen.get("begun", before * 0), torch.where(begins, places, 0)], dim=1)
        begun = begun.cummax(1).values[:, 1:]
        seen |= {"documents": documents[:, -1:], "begun": begun[:, -1:]}
        places = places - begun
    return places.clamp(min=0), documents


def _embed(decoder: ClusterformerDecoder, tokens: Tensor, places: Tensor) -> Tensor:
    """Input of the first layer [n, B, D]."""
    x = decoder.embed_scale * decoder.embed_tokens(tokens)
    if decoder.project_in_dim is not None:
        x = decoder.project_in_dim(x)
    if (module := decoder.embed_positions) is not None:
        places = places + module.padding_idx + 1
        learned = isinstance(module, torch.nn.Embedding)
        x = x + (embedding(places, module.weight) if learned else module.at(places))
    if decoder.layernorm_embedding is not None:
        x = decoder.layernorm_embedding(x)
    return x.transpose(0, 1)


def _through(
    decoder: ClusterformerDecoder,
    x: Tensor,
    batch: Batch,
    state: State,
    encoder_out: dict[str, list[Tensor]] | None,
) -> Tensor:
    """The layers' output [B, n, D]."""
    encoder, hidden = None, None
    if encoder_out is not None:
        encoder, hidden = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
    for layer in decoder.layers:
        x, *_ = layer(x, encoder, hidden, state, batch=batch)
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    x = x.transpose(0, 1)
    return x if decoder.project_out_dim is None else decoder.project_out_dim(x)
