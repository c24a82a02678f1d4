"""How likely a language model holds a text, in one pass and token by token as it would write."""

import copy
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from fairseq import tasks
from fairseq.data import MonolingualDataset
from fairseq.dataclass.utils import overwrite_args_by_name
from torch import Tensor, nn

from fairseq_clusterformer.attention.past import tensors
from fairseq_clusterformer.corpora.binarize import write_dataset
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.decoder import ClusterformerDecoder, DecoderState, decode

from ..checkpoints.load import Loaded, dataset_of
from .breakdown import Breakdown

#: inputs int64 [M], and the targets of the last N of them, int64 [N]
Block = tuple[Tensor, Tensor]

TOKENS_AT_ONCE = 2048


def leaks_future(model: nn.Module) -> bool:
    """Whether later tokens change a model's earlier outputs (--cluster-rule leaking-chunk)."""
    decoder = model.decoder
    return isinstance(decoder, ClusterformerDecoder) and decoder.leaks_future


def begin_of(task: Mapping[str, object], coding: TextCoding, *, empty: bool = False) -> Tensor:
    """What stands in front of a text by the training's options, int64 [N]: ``<s>`` with
    --add-bos-token, and ``</s>``, which is rare among bytes: only an `empty` text of them has it.
    """
    tokens = [coding.dictionary.bos()] * bool(task.get("add_bos_token"))
    if coding.unit != "byte" or empty:
        tokens.append(coding.dictionary.eos())
    return torch.tensor(tokens, dtype=torch.int64)


def split_blocks(loaded: Loaded, split: str) -> Iterator[Block]:
    """Yield the blocks of a split of the data folder, as ``fairseq-eval-lm`` scores them. Raises
    UserError: if there is no such split, or nothing in it."""
    dataset = dataset_of(loaded, split, "--gen-subset")
    return _blocks(loaded, dataset, f"--gen-subset is {split}")


def text_blocks(
    loaded: Loaded, text: Path | str, name: str = "the text", **overrides: object
) -> Iterator[Block]:
    """Yield the blocks of a text, which are those of a split that is prepared from it. Raises
    UserError: if it is empty, or not UTF-8 where that matters.

    Args:
        text: a file, or what would stand in it.
        name: what an error calls the text.
        overrides: options of the task that should differ from the training's.
    """
    coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)
    section = copy.deepcopy(loaded.cfg.task)
    with tempfile.TemporaryDirectory() as folder:  # its files stay mapped
        file = text
        if isinstance(text, str):
            file = Path(folder, "text.txt")
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        if not file.stat().st_size:
            raise UserError(f"{name}: it is empty; allowed: a text of one token or more")
        try:
            write_dataset({"text": file}, Path(folder), coding.dictionary, coding.items)
        except UnicodeDecodeError:
            coding.encode(file.read_bytes(), name)  # says it
            raise
        overwrite_args_by_name(section, {"data": folder, "dataset_impl": None, **overrides})
        task = tasks.setup_task(section, from_checkpoint=True)
        task.load_dataset("text")
    return _blocks(loaded, task.dataset("text"), name)


def _blocks(loaded: Loaded, dataset: MonolingualDataset, name: str) -> Iterator[Block]:
    """As fairseq-eval-lm has them: without ``<s>`` among targets, and without too long lines."""
    most = loaded.model.max_positions()
    fitting = np.flatnonzero(dataset.sizes <= most).tolist()
    if left := len(dataset) - len(fitting):
        problem = f"{left:,} of {len(dataset):,} blocks are longer than {most:,} tokens"
        if not fitting:
            raise UserError(f"{name}: {problem}; allowed: lines of {most:,} tokens or fewer")
        print(f"{name}: {problem}: left out, as by fairseq-eval-lm", file=sys.stderr)
    samples = map(dataset.__getitem__, fitting)
    first = int(bool(loaded.cfg.task.get("add_bos_token")))
    return ((sample["source"], sample["target"][first:]) for sample in samples)


@torch.no_grad()
def compare(
    model: nn.Module,
    blocks: Iterable[Block],
    *,
    stepwise: bool = True,
    streamed: bool = False,
    most: int | None = None,
    breakdown: Breakdown | None = None,
) -> dict[str, float]:
    """Score each block on its own, in one pass and step by step. Returns bits per token,
    perplexities, and the largest difference of a log-probability between these two; of a stream
    also the bytes that are kept. Raises UserError: see `stream_of`.

    A model whose later tokens change earlier outputs cannot work step by step. It reads every
    prefix anew instead.

    Args:
        model: a language model of fairseq, in evaluation mode.
        stepwise: whether to go step by step as well, which takes longer.
        streamed: whether to read the blocks also as one text, see `stream_of`.
        most: how many blocks to score; None: all.
        breakdown: is given each block, and what one pass found.
    """
    device = next(model.parameters()).device
    ways = {"teacher-forced": in_one_pass}
    if stepwise:
        ways["stepwise"] = step_by_step
    if streamed:
        state = stream_of(model)
        ways["streamed"] = partial(_streamed, state=state)
    sums, tokens, largest = dict.fromkeys(ways, 0.0), 0, 0.0
    for source, target in _batches(islice(blocks, most)):
        source, target = source.to(device), target.to(device)
        found = {name: score(model, source, target) for name, score in ways.items()}
        for name, log_probs in found.items():
            sums[name] -= log_probs.double().sum().item()
        one_pass = found["teacher-forced"]
        if stepwise:
            largest = max(largest, (found["stepwise"] - one_pass).abs().max().item())
        tokens += target.numel()
        if breakdown is not None:
            for block in zip(source, target, one_pass, strict=True):
                breakdown.add(*block)
    bits = {name: total / tokens / math.log(2) for name, total in sums.items()}
    result = {"tokens": tokens, **{f"{name} bits": value for name, value in bits.items()}}
    result |= {f"{name} perplexity": 2**value for name, value in bits.items()}
    result |= {"largest difference of a log-probability": largest} if stepwise else {}
    if streamed:
        result["bytes kept"] = sum(t.numel() * t.element_size() for t in tensors(state.state))
    return result


def _batches(blocks: Iterable[Block]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield neighbours of one length together, [B, M] and [B, N]."""
    for length, rows in groupby(blocks, lambda block: len(block[0])):
        while some := [*islice(rows, max(1, TOKENS_AT_ONCE // length))]:
            yield tuple(map(torch.stack, zip(*some, strict=True)))


def in_one_pass(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities of the targets [B, N] in one pass over inputs [B, M], M >= N."""
    return _of_targets(model, model(tokens), target)


def _of_targets(model: nn.Module, out: tuple, target: Tensor) -> Tensor:
    """Log-probabilities of the targets [B, N], to which the last N outputs belong."""
    probs = model.get_normalized_probs(out, log_probs=True)[:, -target.size(1) :]
    return probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def step_by_step(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """The same, one token at a time through the incremental state, or from each prefix."""
    state = None if leaks_future(model) else {}
    columns, before = [], tokens.size(1) - target.size(1)
    for t in range(tokens.size(1)):
        out = model.decoder(tokens[:, : t + 1], incremental_state=state)
        if t >= before:
            columns.append(_of_targets(model, out, target[:, t - before, None]))
    return torch.cat(columns, dim=1)


def stream_of(model: nn.Module) -> DecoderState:
    """The state behind which blocks that follow each other are scored, each behind what the layers
    keep of those before: as Transformer-XL (Dai et al. 2019) is evaluated. What is kept is
    bounded, except for the kind ``full``. Raises UserError: a model of fairseq's own, one that
    leaks, or with learned positions."""
    decoder, problem = model.decoder, ""
    if not isinstance(decoder, ClusterformerDecoder):
        problem = "it keeps every token"
    elif decoder.leaks_future:
        problem = "later tokens change its earlier outputs"
    elif isinstance(decoder.embed_positions, nn.Embedding):
        problem = f"it has {decoder.max_positions()} positions, which were learned"
    if problem:
        allowed = "a clusterformer_lm that is causal, with no learned positions"
        raise bad_option("--stream", type(model).__name__, allowed, problem)
    return DecoderState()


def _streamed(model: nn.Module, tokens: Tensor, target: Tensor, state: DecoderState) -> Tensor:
    """Log-probabilities of the targets [B, N], whose rows follow each other."""
    rows = []
    for row, of_row in zip(tokens[:, None], target[:, None], strict=True):
        features = decode(model.decoder, row, state)
        rows.append(_of_targets(model, (model.decoder.output_layer(features), None), of_row))
    return torch.cat(rows)
