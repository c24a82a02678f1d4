"""How likely a language model holds a text, in one pass and token by token as it would write."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.decoder import ClusterformerDecoder

from .load import Loaded

#: inputs and targets, int64 [N]
Block = tuple[Tensor, Tensor]

PREFIXES_AT_ONCE = 64
TOKENS_AT_ONCE = 2048


def leaks_future(model: nn.Module) -> bool:
    """Whether later tokens change a model's earlier outputs (--cluster-rule leaking-chunk)."""
    decoder = model.decoder
    return isinstance(decoder, ClusterformerDecoder) and decoder.leaks_future


def split_blocks(loaded: Loaded, split: str) -> Iterator[Block]:
    """Yield the blocks of a split of the data folder, as ``fairseq-eval-lm`` scores them.

    Raises:
        UserError: if there is no such split, or nothing in it.
    """
    if not (loaded.folder / f"{split}.idx").is_file():
        raise bad_option(
            "--data", loaded.folder, f"a prepared folder with {split}.idx, or --text FILE"
        )
    loaded.task.load_dataset(split)
    dataset = loaded.task.dataset(split)
    if not len(dataset):
        raise bad_option("--gen-subset", split, "a split with text", "it is empty")
    samples = (dataset[index] for index in range(len(dataset)))
    return ((sample["source"], sample["target"]) for sample in samples)


def file_tokens(coding: TextCoding, file: Path) -> Tensor:
    """The tokens of a text file, int64 [N].

    Raises:
        UserError: if it is no file of text.
    """
    try:
        tokens = list(coding.items(file))
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise bad_option("--text", file, "a file of UTF-8 text", problem) from None
    if not tokens:
        raise bad_option("--text", file, "a file of text", "it is empty")
    return torch.cat(tokens).long()


def tokens_of(coding: TextCoding, text: str) -> Tensor:
    """The tokens of a text, int64 [N], the same as those of a file with this text."""
    tokens = coding.encode(text)
    if coding.unit == "byte" or not text or text.endswith("\n"):
        return tokens
    return torch.cat([tokens, torch.tensor([coding.dictionary.eos()])])


def blocks_of(tokens: Tensor, length: int, eos: int) -> Iterator[Block]:
    """Yield a text [N] in blocks; the first token is predicted from ``</s>``."""
    source = torch.cat([torch.tensor([eos]), tokens[:-1]])
    return zip(source.split(length), tokens.split(length), strict=True)


@torch.no_grad()
def compare(
    model: nn.Module, blocks: Iterable[Block], *, stepwise: bool = True, most: int | None = None
) -> dict[str, float]:
    """Score each block on its own, in one pass and step by step.

    A model whose later tokens change earlier outputs cannot work step by step. It reads every
    prefix anew instead.

    Args:
        model: a language model of fairseq, in evaluation mode.
        stepwise: whether to go step by step as well, which takes longer.
        most: how many blocks to score; None: all.

    Returns:
        Bits per token, perplexities, and the largest difference of a log-probability.
    """
    device = next(model.parameters()).device
    step = by_prefix if leaks_future(model) else by_state
    names = ["teacher-forced", *(["stepwise"] if stepwise else [])]
    sums, tokens, largest = dict.fromkeys(names, 0.0), 0, 0.0
    for source, target in _batches(islice(blocks, most)):
        source, target = source.to(device), target.to(device)
        found = [parallel(model, source, target)]
        if stepwise:
            found.append(step(model, source, target))
            largest = max(largest, (found[0] - found[1]).abs().max().item())
        for name, log_probs in zip(names, found, strict=True):
            sums[name] -= log_probs.double().sum().item()
        tokens += target.numel()
    bits = {name: total / tokens / math.log(2) for name, total in sums.items()}
    result = {"tokens": tokens, **{f"{name} bits": value for name, value in bits.items()}}
    result |= {f"{name} perplexity": 2**value for name, value in bits.items()}
    return result | ({"largest difference of a log-probability": largest} if stepwise else {})


def _batches(blocks: Iterable[Block]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield neighbours of one length together, [B, N] each."""
    rows: list[Block] = []
    for block in blocks:
        length = len(block[0])
        if rows and (len(rows[0][0]) != length or (len(rows) + 1) * length > TOKENS_AT_ONCE):
            yield tuple(map(torch.stack, zip(*rows, strict=True)))
            rows = []
        rows.append(block)
    if rows:
        yield tuple(map(torch.stack, zip(*rows, strict=True)))


def parallel(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities of the targets [B, N] in one pass over inputs [B, N]."""
    probs = model.get_normalized_probs(model(tokens), log_probs=True)
    return probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def by_state(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """The same, one token at a time through the incremental state."""
    state: dict = {}
    columns = []
    for t in range(tokens.size(1)):
        out = model.decoder(tokens[:, : t + 1], incremental_state=state)
        probs = model.get_normalized_probs(out, log_probs=True)[:, -1]
        columns.append(probs.gather(-1, target[:, t : t + 1]))
    return torch.cat(columns, dim=1)


def by_prefix(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """The same, each token from a pass over the tokens before it alone."""
    batch, length = tokens.shape
    pad = model.decoder.padding_idx
    result = torch.empty(batch, length, device=tokens.device)
    for row in range(batch):
        for begin in range(0, length, PREFIXES_AT_ONCE):
            ends = torch.arange(begin, min(length, begin + PREFIXES_AT_ONCE))
            longest = int(ends[-1]) + 1
            prefixes = tokens[row, :longest].repeat(len(ends), 1)
            prefixes[(torch.arange(longest) > ends.unsqueeze(-1)).to(tokens.device)] = pad
            last, extra = model(prefixes)
            last = last[torch.arange(len(ends)), ends].unsqueeze(1)
            probs = model.get_normalized_probs((last, extra), log_probs=True)[:, 0]
            chosen = target[row, begin : begin + len(ends)].unsqueeze(-1)
            result[row, begin : begin + len(ends)] = probs.gather(-1, chosen).squeeze(-1)
    return result
