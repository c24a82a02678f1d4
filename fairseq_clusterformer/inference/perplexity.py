"""How likely a language model holds a text, in one pass and token by token as it would write."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.decoder import ClusterformerDecoder
from fairseq_clusterformer.models.decoding import DecoderState, decode

from .breakdown import Breakdown
from .load import Loaded

#: inputs and targets, int64 [N]
Block = tuple[Tensor, Tensor]

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
        there = sorted(path.stem for path in loaded.folder.glob("*.idx"))
        if not there:
            raise bad_option(
                "--data", loaded.folder, "a prepared folder, or --text FILE", "it has no split"
            )
        raise bad_option("--gen-subset", split, ", ".join(there), f"not in {loaded.folder}")
    loaded.task.load_dataset(split)
    dataset = loaded.task.dataset(split)
    if not len(dataset):
        raise bad_option("--gen-subset", split, "a split with text", "it is empty")
    samples = (dataset[index] for index in range(len(dataset)))
    return ((sample["source"], sample["target"]) for sample in samples)


def training_items(loaded: Loaded) -> Iterator[Tensor]:
    """Yield the training split of the data folder, which must be there, block by block."""
    return (target for _, target in split_blocks(loaded, "train"))


def tokens_of(coding: TextCoding, text: str | bytes, name: str = "the text") -> Tensor:
    """The tokens of a text, int64 [N]; its last line is ended where line ends are tokens.

    Args:
        name: what an error calls the text.

    Raises:
        UserError: if it is empty, or not UTF-8 where that matters.
    """
    if not text:
        raise UserError(f"{name}: it is empty; allowed: a text of one token or more")
    tokens = coding.encode(text, name)
    if coding.unit == "byte" or text.endswith("\n" if isinstance(text, str) else b"\n"):
        return tokens
    return torch.cat([tokens, torch.tensor([coding.dictionary.eos()])])


def blocks_of(tokens: Tensor, length: int, eos: int) -> Iterator[Block]:
    """Yield a text [N] in blocks; the first token is predicted from ``</s>``."""
    source = torch.cat([torch.tensor([eos]), tokens[:-1]])
    return zip(source.split(length), tokens.split(length), strict=True)


@torch.no_grad()
def compare(
    model: nn.Module,
    blocks: Iterable[Block],
    *,
    stepwise: bool = True,
    most: int | None = None,
    breakdown: Breakdown | None = None,
) -> dict[str, float]:
    """Score each block on its own, in one pass and step by step.

    A model whose later tokens change earlier outputs cannot work step by step. It reads every
    prefix anew instead.

    Args:
        model: a language model of fairseq, in evaluation mode.
        stepwise: whether to go step by step as well, which takes longer.
        most: how many blocks to score; None: all.
        breakdown: is given each block, and what one pass found.

    Returns:
        Bits per token, perplexities, and the largest difference of a log-probability.
    """
    device = next(model.parameters()).device
    ways = {"teacher-forced": in_one_pass, **({"stepwise": step_by_step} if stepwise else {})}
    sums, tokens, largest = dict.fromkeys(ways, 0.0), 0, 0.0
    for source, target in _batches(islice(blocks, most)):
        source, target = source.to(device), target.to(device)
        found = {name: score(model, source, target) for name, score in ways.items()}
        for name, log_probs in found.items():
            sums[name] -= log_probs.double().sum().item()
            difference = (log_probs - found["teacher-forced"]).abs().max().item()
            largest = max(largest, difference)
        tokens += target.numel()
        if breakdown is not None:
            for block in zip(source, target, found["teacher-forced"], strict=True):
                breakdown.add(*block)
    bits = {name: total / tokens / math.log(2) for name, total in sums.items()}
    result = {"tokens": tokens, **{f"{name} bits": value for name, value in bits.items()}}
    result |= {f"{name} perplexity": 2**value for name, value in bits.items()}
    return result | ({"largest difference of a log-probability": largest} if stepwise else {})


@torch.no_grad()
def as_one_text(model: nn.Module, blocks: Iterable[Block], most: int | None = None) -> dict:
    """Score blocks that follow each other, each behind what the layers keep of those before.

    What is kept is bounded (except for the kind ``full``), as in writing: so is the memory, for a
    text of any length. Transformer-XL (Dai et al. 2019) is evaluated so.

    Args:
        model: a language model of ours, in evaluation mode.
        most: how many blocks to score; None: all.

    Returns:
        Bits per token, perplexity, and how many bytes are kept.

    Raises:
        UserError: a model of fairseq's own, one that leaks, or with learned positions.
    """
    decoder = model.decoder
    problem = ""
    if not isinstance(decoder, ClusterformerDecoder):
        problem = "it keeps every token"
    elif decoder.leaks_future:
        problem = "later tokens change its earlier outputs"
    elif isinstance(decoder.embed_positions, nn.Embedding):
        problem = f"it has {decoder.max_positions()} positions, which were learned"
    if problem:
        allowed = "a clusterformer_lm that is causal, with no learned positions"
        raise bad_option("--stream", type(model).__name__, allowed, problem)
    device = next(model.parameters()).device
    state, total, tokens = DecoderState(), 0.0, 0
    for source, target in islice(blocks, most):
        source, target = source[None].to(device), target[None].to(device)
        out = decoder.output_layer(decode(decoder, source, state)), None
        probs = model.get_normalized_probs(out, log_probs=True)
        total -= probs.gather(-1, target.unsqueeze(-1)).double().sum().item()
        tokens += target.numel()
    kept = [t for module in state.state.values() for t in module.values() if t is not None]
    bits = total / tokens / math.log(2)
    return {
        "streamed bits": bits,
        "streamed perplexity": 2**bits,
        "bytes kept": sum(t.numel() * t.element_size() for t in kept),
    }


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


def in_one_pass(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities of the targets [B, N] in one pass over inputs [B, N]."""
    probs = model.get_normalized_probs(model(tokens), log_probs=True)
    return probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def step_by_step(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """The same, one token at a time through the incremental state, or from each prefix."""
    state = None if leaks_future(model) else {}
    columns = []
    for t in range(tokens.size(1)):
        out = model.decoder(tokens[:, : t + 1], incremental_state=state)
        probs = model.get_normalized_probs(out, log_probs=True)[:, -1]
        columns.append(probs.gather(-1, target[:, t : t + 1]))
    return torch.cat(columns, dim=1)
