"""Documents as rows of parts, some words and parts of which are hidden: what ETC's encoder is
pre-trained on (Ainslie et al. 2020, sections 3.3 and 4.1)."""

from bisect import bisect_left, insort
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_clusterformer.data.by_size import BySize

PARTS = ("sentences", "blocks", "none")
NO_EXAMPLE = -1  # of a global token that is padding
_ALONE = 512  # tokens of a row of hidden parts, or those of the longest


def pieces_of(
    sizes: np.ndarray, most: int, most_lines: int, least_lines: int = 1
) -> list[tuple[int, int]]:
    """Documents, those that are long in pieces of whole lines: the lines [first, last) of each.

    Args:
        sizes: tokens of each line, int [n]; 0 ends a document.
        most, most_lines: tokens of a piece, as no line has more, and its lines.
        least_lines: of a document; shorter ones are left out.
    """
    document = (sizes == 0).cumsum()
    lines = np.bincount(document, weights=sizes > 0)
    sizes = np.where(lines[document] < least_lines, 0, sizes)
    pieces, first, room = [], 0, most
    for line, size in enumerate(sizes.tolist()):
        if line > first and (size == 0 or size > room or line - first == most_lines):
            pieces.append((first, line))
            first, room = line, most
        if size == 0:
            first, room = line + 1, most
        else:
            room -= size
    if first < len(sizes):
        pieces.append((first, len(sizes)))
    return pieces


def packed(tokens: np.ndarray, parts: np.ndarray, most: int, most_parts: int) -> list[list[int]]:
    """Rows of short pieces, numbers rising: each piece, the longest first, joins the row that it
    fills best among those that surely have room for its parts. ``tokens`` and ``parts`` of each
    piece, int [n], are ``most`` and ``most_parts`` or less."""
    rows: list[list[int]] = []
    # by powers of 2 of the parts that are left: tokens that are left, parts that are, and the row
    free: list[list[tuple[int, int, int]]] = [[] for _ in range(most_parts.bit_length() + 1)]
    for piece in np.argsort(-tokens, kind="stable").tolist():
        size, count = int(tokens[piece]), int(parts[piece])
        found = []
        for level in range((max(count, 1) - 1).bit_length(), len(free)):
            at = bisect_left(free[level], (size, 0, 0))
            if at < len(free[level]):
                found.append((free[level][at], level, at))
        if found:
            (room, left, row), level, at = min(found)
            free[level].pop(at)
            rows[row].append(piece)
        else:
            room, left, row = most, most_parts, len(rows)
            rows.append([piece])
        room, left = room - size, left - count
        if room and left:
            insort(free[left.bit_length() - 1], (room, left, row))
    return [sorted(row) for row in rows]


class MaskedParts(BySize):
    """Rows of documents' parts. A row holds one piece of a long document, or several short ones,
    which do not see each other.

    In a share of the parts, all tokens are hidden; the model is to recognise these parts by their
    global tokens. In the others, a share of the words is guessed. By default, of 10 of their
    tokens 8 are hidden, 1 becomes another word and 1 stays. What is hidden differs between epochs.

    Args:
        lines: one binarised sentence an item; one without a word ends a document.
        dictionary: of the words; it has ``<mask>``.
        begins_word: whether each symbol begins a word, bool [symbols].
        most, most_parts: tokens of a row, and its parts; a longer line loses its end.
        least_lines: of a document; shorter ones are left out.
        parts: of :data:`PARTS`: each line is one, or each ``block`` tokens, or there are none.
        hidden_parts, guessed: shares of the parts, and of the words.
        kept, replaced: shares of the guessed tokens that stay, and that become another word.

    Attributes:
        left_out, lost: lines of too short documents, and tokens of too long lines.
    """

    shuffle = True

    def __init__(
        self,
        lines: Any,
        dictionary: Dictionary,
        begins_word: np.ndarray,
        *,
        most: int,
        most_parts: int,
        least_lines: int = 1,
        parts: str = "sentences",
        block: int = 97,
        hidden_parts: float = 0.1,
        guessed: float = 0.15,
        kept: float = 0.1,
        replaced: float = 0.1,
        seed: int = 1,
    ):
        self.lines, self.dictionary, self.begins_word = lines, dictionary, begins_word
        self.parts, self.block = parts, block
        self.hidden_parts, self.guessed = hidden_parts, guessed
        self.kept, self.replaced, self.seed, self.epoch = kept, replaced, seed, 1
        self._lengths = np.minimum(np.asarray(lines.sizes) - 1, most)  # without </s>
        if parts == "blocks":
            most = min(most, most_parts * block)
            self._lengths = np.minimum(self._lengths, most)
        most_lines = most_parts if parts == "sentences" else len(self._lengths)
        self.pieces = pieces_of(self._lengths, most, most_lines, least_lines)
        self._tokens = np.array([self._lengths[slice(*piece)].sum() for piece in self.pieces], int)
        used = sum(last - first for first, last in self.pieces)
        self.left_out = int((self._lengths > 0).sum()) - used
        self.lost = int((np.asarray(lines.sizes) - 1 - self._lengths).sum())
        counts = np.array([len(self._ends(piece)) for piece in range(len(self.pieces))], int)
        self.rows = packed(self._tokens, counts.clip(min=1), most, most_parts)
        self.sizes = np.array([self._tokens[row].sum() for row in self.rows], int)

    def _ends(self, piece: int) -> np.ndarray:
        """Where the parts of a piece end, int [parts]."""
        if self.parts == "sentences":
            return self._lengths[slice(*self.pieces[piece])].cumsum()
        if self.parts == "none":
            return np.empty(0, int)
        length = self._tokens[piece]
        return np.minimum(np.arange(0, length, self.block) + self.block, length)

    def __len__(self) -> int:
        return len(self.rows)

    def set_epoch(self, epoch: int) -> None:
        """Hide other words."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        pieces = self.rows[index]
        lines = [line for piece in pieces for line in range(*self.pieces[piece])]
        tokens = torch.cat([self.lines[line][: self._lengths[line]] for line in lines]).numpy()
        examples, sizes = np.arange(len(pieces)), self._tokens[pieces]
        first = sizes.cumsum() - sizes  # where each piece begins in the row
        ends = [self._ends(piece) for piece in pieces]
        starts = [np.concatenate([[0], of_piece[:-1]])[: len(of_piece)] for of_piece in ends]
        of_parts = np.repeat(examples, [len(of_piece) for of_piece in ends])
        spans = np.stack([np.concatenate(x) for x in (starts, ends)], -1).astype(int)
        spans += first[of_parts, None]  # from places in a piece to places in the row
        words, of_spans = (
            np.random.default_rng((self.seed, self.epoch, index, of)) for of in range(2)
        )  # what is guessed does not depend on what parts there are
        hidden = of_spans.random(len(spans)) < self.hidden_parts
        in_hidden = np.zeros(len(tokens), bool)
        for span in spans[hidden]:
            in_hidden[slice(*span)] = True
        begins = self.begins_word[tokens]
        begins[np.cumsum([0, *self._lengths[lines[:-1]]])] = True  # so does every line
        shown, target = self._masked(tokens, begins, in_hidden, words)
        return {
            "id": index,
            "tokens": torch.from_numpy(shown),
            "target": torch.from_numpy(target),
            "spans": torch.from_numpy(spans),
            "hidden": torch.from_numpy(hidden),
            "long_examples": torch.from_numpy(np.repeat(examples, sizes)),
            "global_examples": torch.from_numpy(of_parts),
            "alone": [torch.from_numpy(tokens[slice(*span)]) for span in spans[hidden]],
        }

    def _masked(
        self, tokens: np.ndarray, begins: np.ndarray, hidden: np.ndarray, draw: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the model reads, and what it guesses (padding elsewhere), int64 [N]; of tokens,
        whether each begins a word, and whether it is of a hidden part, bool [N]."""
        word = begins.cumsum() - 1  # one draw a word: all its tokens are guessed, or none
        guessed = (draw.random(len(tokens)) < self.guessed)[word] & ~hidden
        change = draw.random(len(tokens))
        others = draw.integers(self.dictionary.nspecial, len(self.dictionary), len(tokens))
        shown = np.where(change < 1 - self.kept, self.dictionary.index("<mask>"), tokens)
        shown = np.where(change < self.replaced, others, shown)
        shown = np.where(guessed, shown, tokens)
        shown = np.where(hidden, self.dictionary.index("<mask>"), shown)
        return shown, np.where(guessed, tokens, self.dictionary.pad())

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """``src_tokens`` and ``target``, int64 [B, N], and ``parts``: their ``spans`` [B, G, 2],
        whether each is ``hidden`` [B, G], ``long_examples`` [B, N], ``global_examples`` [B, G]
        (:data:`NO_EXAMPLE` for padding). ``alone`` has all hidden ones as rows that do not see
        each other, with the same fields, and where each global token is, ``at`` int64 [S, 2]."""
        if not samples:
            return {}
        alone = [tokens for sample in samples for tokens in sample["alone"]]
        tokens, target = (
            collate_tokens([sample[name] for sample in samples], self.dictionary.pad())
            for name in ("tokens", "target")
        )
        parts = {**_parts_of(samples), "alone": self._alone(alone)}
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {"src_tokens": tokens, "parts": parts},
            "target": target,
            "nsentences": len(samples),
            "ntokens": sum(len(sample["tokens"]) for sample in samples),
        }

    def _alone(self, parts: list[Tensor]) -> dict[str, Tensor]:
        """Parts as examples of rows, each of which has one global token."""
        sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        samples, at = [], torch.zeros(len(parts), 2, dtype=torch.int64)
        if not parts:
            return {"at": at}
        most = max(int(sizes.max()), _ALONE)
        rows = packed(sizes.numpy(), np.ones(len(parts), int), most, len(parts))
        for row, numbers in enumerate(rows):
            ends = sizes[numbers].cumsum(0)
            number = torch.arange(len(numbers))
            at[numbers] = torch.stack([torch.full_like(number, row), number], -1)
            samples.append(
                {
                    "tokens": torch.cat([parts[part] for part in numbers]),
                    "spans": torch.stack([ends - sizes[numbers], ends], -1),
                    "hidden": torch.zeros_like(number, dtype=torch.bool),
                    "long_examples": number.repeat_interleave(sizes[numbers]),
                    "global_examples": number,
                }
            )
        tokens = collate_tokens([sample["tokens"] for sample in samples], self.dictionary.pad())
        return {"src_tokens": tokens, "at": at, **_parts_of(samples)}


def _parts_of(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Fields of a batch that say what parts are in it."""

    def column(name: str, pad: int) -> Tensor:
        return collate_tokens([sample[name] for sample in samples], pad)

    sides = [collate_tokens([s["spans"][:, side] for s in samples], 0) for side in range(2)]
    return {
        "spans": torch.stack(sides, -1),
        "hidden": column("hidden", False),
        "long_examples": column("long_examples", 0),
        "global_examples": column("global_examples", NO_EXAMPLE),
    }
