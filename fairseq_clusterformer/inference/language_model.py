"""Lets a byte-level language model write, one byte a step."""

from collections.abc import Iterator

import torch

from fairseq_clusterformer.data.bytes import decode, encode


@torch.no_grad()
def sample_bytes(
    model, dictionary, prompt: bytes, length: int, *, temperature: float, seed: int
) -> Iterator[bytes]:
    """Continue a prompt through the incremental path, a token a step.

    Args:
        model: fairseq language model in eval mode.
        dictionary: of the 256 bytes.
        prompt: one byte or more.
        length: bytes to write.
        temperature: divides the logits.
        seed: the same text for the same seed.

    Yields:
        The next byte.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([[dictionary.index(symbol) for symbol in encode(prompt)]])
    state: dict = {}
    while tokens.size(1) < len(prompt) + length:
        start = 1 if not state else tokens.size(1)
        for end in range(start, tokens.size(1) + 1):
            logits, _ = model.decoder(tokens[:, :end], incremental_state=state)
        logits = logits[0, -1].float() / temperature
        logits[: dictionary.nspecial] = -torch.inf  # </s> and its like are no bytes
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, token.view(1, 1)], dim=1)
        yield decode([dictionary[int(token)]])
