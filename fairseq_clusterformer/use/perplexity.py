"""How likely a language model holds a text: in one pass, token by token, and place by place."""

import copy
import math
import os
import re
import sys
import tempfile
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice, pairwise, starmap
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

#: inputs int64 [M], and the targets of the last N of them, int64 [N]
Block = tuple[Tensor, Tensor]

TOKENS_AT_ONCE = 2048
FIRST = 64  # buckets are powers of two: below it, from it to twice it, and so on
RARE = 20
POSITION, REPEATS = "bits by position", "bits on repeats by distance"
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{3,}")  # or a word, of at least 4 letters


def leaks_future(model: nn.Module) -> bool:
    """Whether later tokens change a model's earlier outputs (--cluster-rule leaking-chunk)."""
    decoder = model.decoder
    return isinstance(decoder, ClusterformerDecoder) and decoder.leaks_future


def begin_of(loaded: Loaded, coding: TextCoding, *, empty: bool = False) -> Tensor:
    """What stands in front of a text by the training's options, int64 [N]: ``<s>`` with
    --add-bos-token, and the symbol of --text-begin, for want of which an `empty` text has
    ``</s>``. Raises UserError: there is no such symbol."""
    words, begin = coding.dictionary, getattr(loaded.model, "text_begin", None)
    if empty and not begin or begin is None and coding.unit != "byte":
        begin = words[words.eos()]
    tokens = [words.bos()] * bool(loaded.cfg.task.get("add_bos_token"))
    if begin and begin not in words:
        raise bad_option("--text-begin", begin, "a symbol of the dict.txt, or '' for nothing")
    if begin:
        tokens.append(words.index(begin))
    return torch.tensor(tokens, dtype=torch.int64)


def ends_of(loaded: Loaded, coding: TextCoding) -> Sequence[int]:
    """Symbols that end a text when it is written (--text-ends), or ``</s>`` if no line ends so."""
    own = [coding.dictionary.eos()] if coding.ends_texts else []
    return getattr(loaded.model, "text_ends", own) or own


def split_blocks(loaded: Loaded, split: str) -> Iterator[Block]:
    """A split's blocks, as ``fairseq-eval-lm`` scores them. UserError: it is missing, or empty."""
    dataset = dataset_of(loaded, split, "--gen-subset")
    return _blocks(loaded, dataset, f"--gen-subset is {split}")


def text_blocks(
    loaded: Loaded, text: Path | str, name: str = "the text", **overrides: object
) -> Iterator[Block]:
    """The blocks of a split that is prepared from a text, a file or what would stand in it; an
    error calls it `name`. The `overrides` are options of the task that should differ from the
    training's. Raises UserError: if it is empty, or not UTF-8 where that matters."""
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
    """As fairseq-eval-lm has them: without ``<s>`` among targets, and without too long lines. What
    --text-begin says stands where fairseq puts ``</s>`` that ends no line; if it is nothing, the
    first token is not scored."""
    most = loaded.model.max_positions()
    fitting = np.flatnonzero(dataset.sizes <= most).tolist()
    if left := len(dataset) - len(fitting):
        problem = f"{left:,} of {len(dataset):,} blocks are longer than {most:,} tokens"
        if not fitting:
            raise UserError(f"{name}: {problem}; allowed: lines of {most:,} tokens or fewer")
        print(f"{name}: {problem}: left out, as by fairseq-eval-lm", file=sys.stderr)
    first = int(bool(loaded.cfg.task.get("add_bos_token")))
    samples = map(dataset.__getitem__, fitting)
    blocks = ((sample["source"], sample["target"][first:]) for sample in samples)
    if getattr(loaded.model, "text_begin", None) is None:
        return blocks
    coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)
    begin, end = begin_of(loaded, coding), coding.dictionary.eos()
    if not len(begin) and dataset.sizes[fitting].max() < 2:
        problem = "nothing stands before its only token"
        raise UserError(f"{name}: {problem}; allowed: a text of two tokens or more")

    def begun(number: int, block: Block) -> Block:
        source, target = block
        if source[first] == end and (coding.ends_texts or number == 0):
            source = torch.cat([begin, source[first + 1 :]])
        return source, target[-len(source) :] if len(source) else source

    return filter(lambda block: len(block[1]), starmap(begun, enumerate(blocks)))


@torch.no_grad()
def compare(
    model: nn.Module,
    blocks: Iterable[Block],
    *,
    stepwise: bool = True,
    streamed: bool = False,
    most: int | None = None,
    breakdown: "Breakdown | None" = None,
) -> dict[str, float]:
    """Score each block on its own, in one pass and step by step, by a language model of fairseq in
    evaluation mode. Returns bits per token, perplexities, and the largest difference of a
    log-probability between these two; of a stream also the bytes that are kept. Raises UserError:
    see `stream_of`.

    Args:
        stepwise: go step by step as well, which takes longer; where later tokens change earlier
            outputs, every prefix is read anew instead.
        streamed: read the blocks also as one text, see `stream_of`.
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
    for length, neighbours in groupby(islice(blocks, most), lambda block: len(block[0])):
        while some := [*islice(neighbours, max(1, TOKENS_AT_ONCE // length))]:
            source, target = (torch.stack(each).to(device) for each in zip(*some, strict=True))
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
    keep of those before (Transformer-XL, Dai et al. 2019): bounded, except for the kind ``full``.
    Raises UserError: a model of fairseq's own, one that leaks, or with learned positions."""
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


class Breakdown:
    """Bits per token by position in the block, and on repeats by distance.

    A repeat is a token that a model can only know from the text before. On bytes, these are the
    letters of an identifier that stood before, once no other one of the text so far begins alike;
    on pieces and words, the second token of a pair that stood before (Arora et al., Zoology, 2023,
    section 3). What ``training``, items int64 [N] (none: all is rare), holds more often than
    ``rare`` is left out: a model knows it by heart."""

    def __init__(self, coding: TextCoding, training: Iterable[Tensor] = (), rare: int = RARE):
        self.coding, self.of_bytes, self.rare = coding, coding.unit == "byte", rare
        self.known: Counter = Counter()  # how often each identifier, or pair, stands in training
        for tokens in training:
            if self.of_bytes:
                self.known.update(_IDENTIFIER.findall(self._text(tokens)))
            else:
                self.known.update(pairwise(tokens.tolist()))
        # by the title of a table: nats and tokens of each bucket
        self._nats = {POSITION: Counter(), REPEATS: Counter()}
        self._count = {POSITION: Counter(), REPEATS: Counter()}

    def add(self, source: Tensor, target: Tensor, log_probs: Tensor) -> None:
        """Count a block: inputs int64 [M], the last targets int64 [N], their log-probabilities."""
        if self.of_bytes:
            distances = np.array(self.repeated_identifiers(self._text(target)))
        else:
            tokens = [int(source[-len(target)]), *target.tolist()]
            distances = np.array(self.repeated_pairs(tokens)[1:])
        nats, far = -log_probs.double().cpu().numpy(), distances > 0
        tables = (POSITION, np.arange(len(nats)), nats), (REPEATS, distances[far], nats[far])
        for title, places, of_places in tables:
            buckets = np.frexp(places // FIRST)[1]  # 0 below FIRST, 1 below twice it, and so on
            for bucket in np.unique(buckets).tolist():
                self._nats[title][bucket] += float(of_places[buckets == bucket].sum())
                self._count[title][bucket] += int((buckets == bucket).sum())

    def result(self) -> dict[str, list[dict]]:
        """`POSITION` and `REPEATS`: for each bucket, where it begins and ends (not included), how
        many tokens it has, and the bits of one."""
        return {
            title: [
                {
                    "from": FIRST << (bucket - 1) if bucket else 0,
                    "to": FIRST << bucket,
                    "tokens": count,
                    "bits": self._nats[title][bucket] / count / math.log(2),
                }
                for bucket, count in sorted(counts.items())
            ]
            for title, counts in self._count.items()
        }

    def _text(self, tokens: Tensor) -> bytes:
        """One byte a token; a blank for what is none."""
        chunks = self.coding.chunks(tokens.tolist())
        return b"".join(chunk if len(chunk) == 1 else b" " for chunk in chunks)

    def repeated_pairs(self, tokens: Sequence[int]) -> list[int]:
        """How far back a token's pair with the one before stood last; 0: new, or no rare pair."""
        last: dict[tuple[int, int], int] = {}
        found = [0] * len(tokens)
        for i, pair in enumerate(pairwise(tokens), start=1):
            if pair in last and self.known[pair] <= self.rare:
                found[i] = i - last[pair]
            last[pair] = i
        return found

    def repeated_identifiers(self, text: bytes) -> list[int]:
        """Distances from each byte to the same byte of its identifier, the last time; 0: there is
        none, or it is new, not rare, or until here like another one of the text so far."""
        last: dict[bytes, int] = {}
        ordered: list[bytes] = []  # those of the text so far
        found = [0] * len(text)
        for match in _IDENTIFIER.finditer(text):
            word, begin = match.group(), match.start()
            if word not in last:
                insort(ordered, word)
            elif self.known[word] <= self.rare:
                at = bisect_left(ordered, word)
                neighbours = (*ordered[max(0, at - 1) : at], *ordered[at + 1 : at + 2])
                alike = (len(os.path.commonprefix((word, other))) for other in neighbours)
                for i in range(begin + max(alike, default=0) + 1, match.end()):
                    found[i] = begin - last[word]
            last[word] = begin
        return found
