"""More tokens for each row, by the layers of our decoder and what they keep of those before."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, any_padding

from .attention import State
from .decoder import ClusterformerDecoder


@dataclass
class DecoderState:
    """What layers keep of the tokens before; anything with these attributes will do."""

    #: of fairseq's modules, by their names; the batch comes first in each tensor
    state: State = field(default_factory=dict)
    tokens: int = 0  # how many were seen, padding included


@torch.no_grad()
def decode(
    decoder: ClusterformerDecoder,
    tokens: Tensor,
    cache: DecoderState,
    encoder_out: dict[str, list[Tensor]] | None = None,
) -> Tensor:
    """Features [B, n, D] of n more tokens, int64 [B, n], which the cache then holds; read at once,
    or one by one by a decoder that keeps documents apart.

    fairseq's own step takes the same position for all rows; here each row counts its own real
    tokens, so that a row padded on the left is the row alone. Raises ValueError: a decoder that
    sees the future.
    """
    padding = tokens.eq(decoder.padding_idx)
    # Avoid a device sync: on a GPU it would cost more than a step.
    padded = tokens.is_cuda or any_padding(padding) is not None
    places, documents = _places(decoder, tokens, ~padding, padded, cache)
    length = tokens.size(1)
    size = length if documents is None else 1
    features = []
    for part in (slice(first, first + size) for first in range(0, length, size)):
        batch = Batch(
            padding[:, part] if padded else None, None if documents is None else documents[:, part]
        )
        x = decoder.embed(tokens[:, part], places[:, part])
        features.append(decoder.run(x, batch, encoder_out, cache.state)[0])
    cache.tokens += length
    return torch.cat(features, dim=1)


def _places(
    decoder: ClusterformerDecoder, tokens: Tensor, real: Tensor, padded: bool, cache: DecoderState
) -> tuple[Tensor, Tensor | None]:
    """Places of the tokens in their rows or documents, int64 [1 or B, n], and the documents."""
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
        # the place in its row where each token's document begins: the latest beginning so far
        begun = torch.cat([seen.get("begun", before * 0), torch.where(begins, places, 0)], dim=1)
        begun = begun.cummax(1).values[:, 1:]
        seen |= {"documents": documents[:, -1:], "begun": begun[:, -1:]}
        places = places - begun
    return places.clamp(min=0), documents
