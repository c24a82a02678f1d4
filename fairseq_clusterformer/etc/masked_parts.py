"""Documents as rows of parts, some words and parts of which are hidden: what ETC's encoder is
pre-trained on (Ainslie et al. 2020, sections 3.3 and 4.1)."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.stored import BySize

PARTS = ("sentences", "blocks", "none")
NO_EXAMPLE = -1  # of a global token that is padding
_ALONE = 512  # tokens of a row of hidden parts, or those of the longest


def pieces_of(
    sizes: np.ndarray, most: int, most_lines: int, least_lines: int = 1
) -> list[tuple[int, int]]:
    """Documents of ``least_lines``, those that are long in pieces of whole lines: the lines
    [first, last) of each. Of lines' tokens, int [n], where 0 ends a document; no line has more
    tokens than a piece may have, ``most``."""
    document = (sizes == 0).cumsum()
    lines = np.bincount(document, weights=sizes > 0)
    sizes = np.where(lines[document] < least_lines, 0, sizes)
    pieces, first, room = [], 0, most
    for line, size in enumerate([*sizes.tolist(), 0]):
        if line > first and (size == 0 or size > room or line - first == most_lines):
            pieces.append((first, line))
            first, room = line, most
        first, room = (line + 1, most) if size == 0 else (first, room - size)
    return pieces


def packed(tokens: np.ndarray, parts: np.ndarray, most: int, most_parts: int) -> list[list[int]]:
    """Rows of short pieces, numbers rising: each piece, the longest first, joins the row that it
    fills best among those that surely have room for its parts. ``tokens`` and ``parts`` of each
    piece, int [n], 1 or more, are ``most`` and ``most_parts`` or less."""
    rows: list[list[int]] = []
    # by powers of 2 of the parts that are left: tokens that are left, parts that are, and the row
    free: list[list[tuple[int, int, int]]] = [[] for _ in range(most_parts.bit_length() + 1)]
    for piece in np.argsort(-tokens, kind="stable").tolist():
        size, count = int(tokens[piece]), int(parts[piece])
        wide = free[(count - 1).bit_length() :]
        places = [bisect_left(level, (size, 0, 0)) for level in wide]
        found = [row for level, at in zip(wide, places, strict=True) for row in level[at : at + 1]]
        room, left, row = min(found, default=(most, most_parts, len(rows)))
        if found:
            level = free[left.bit_length() - 1]
            level.pop(bisect_left(level, (room, left, row)))
        else:
            rows.append([])
        rows[row].append(piece)
        if room > size and left > count:
            insort(free[(left - count).bit_length() - 1], (room - size, left - count, row))
    return [sorted(row) for row in rows]


class MaskedParts(BySize):
    """Rows of documents' parts. A row holds one piece of a long document, or several short ones,
    which do not see each other.

    In a share of the parts, all tokens are hidden; the model is to recognise these parts by their
    global tokens. In the others, a share of the words is guessed. It differs between epochs.

    Args:
        lines: one binarised sentence an item; one without a word ends a document.
        dictionary: of the words; it has ``<mask>``.
        begins_word: whether each symbol begins a word, bool [symbols].
        cfg: the task's options.
        left_out, lost: lines of too short documents, and tokens of too long lines.
    """

    shuffle = True

    def __init__(self, lines: Any, dictionary: Dictionary, begins_word: np.ndarray, cfg: Any):
        self.lines, self.dictionary, self.begins_word = lines, dictionary, begins_word
        self.cfg = cfg
        sizes, most = np.asarray(lines.sizes) - 1, cfg.tokens_per_sample  # without </s>
        if cfg.parts == "blocks":
            most = min(most, cfg.max_parts * cfg.part_tokens)
        self._lengths = np.minimum(sizes, most)
        most_lines = cfg.max_parts if cfg.parts == "sentences" else len(sizes)
        self.pieces = pieces_of(self._lengths, most, most_lines, cfg.min_sentences)
        self.left_out = int((sizes > 0).sum()) - sum(last - first for first, last in self.pieces)
        self.lost = int((sizes - self._lengths).sum())
        tokens = np.array([self._lengths[slice(*piece)].sum() for piece in self.pieces], int)
        counts = np.array([len(self._ends(*piece)) for piece in self.pieces], int)
        self.rows = packed(tokens, counts.clip(min=1), most, cfg.max_parts)
        self.sizes = np.array([tokens[row].sum() for row in self.rows], int)

    def _ends(self, first: int, last: int) -> np.ndarray:
        """Where the parts of a piece end, int [parts]."""
        ends = self._lengths[first:last].cumsum()
        if self.cfg.parts == "blocks":
            block = self.cfg.part_tokens
            ends = np.minimum(np.arange(0, ends[-1], block) + block, ends[-1])
        return ends[:0] if self.cfg.parts == "none" else ends

    def __getitem__(self, index: int) -> dict[str, Any]:
        pieces = [self.pieces[number] for number in self.rows[index]]
        lines = [[self.lines[line][: self._lengths[line]] for line in range(*p)] for p in pieces]
        row = _row([torch.cat(piece).numpy() for piece in lines], [self._ends(*p) for p in pieces])
        tokens, spans = row["src_tokens"], row["spans"]
        draw, of_spans = (
            np.random.default_rng((self.cfg.seed, self.epoch, index, of)) for of in range(2)
        )  # what is guessed does not depend on what parts there are
        row["hidden"] = of_spans.random(len(spans)) < self.cfg.hide_parts
        alone, hidden = [], np.zeros(len(tokens), bool)
        for first, last in spans[row["hidden"]]:
            alone.append(tokens[first:last])
            hidden[first:last] = True
        begins = self.begins_word[tokens]
        begins[np.cumsum([0, *(len(line) for piece in lines for line in piece)])[:-1]] = True
        word = begins.cumsum() - 1  # one draw a word: all its tokens are guessed, or none
        guessed = (draw.random(len(tokens)) < self.cfg.mask_prob)[word] & ~hidden
        change, mask = draw.random(len(tokens)), self.dictionary.index("<mask>")
        others = draw.integers(self.dictionary.nspecial, len(self.dictionary), len(tokens))
        shown = np.where(change < 1 - self.cfg.leave_unmasked_prob, mask, tokens)
        shown = np.where(change < self.cfg.random_token_prob, others, shown)
        row["src_tokens"] = np.where(hidden, mask, np.where(guessed, shown, tokens))
        row["target"] = np.where(guessed, tokens, self.dictionary.pad())
        return {"id": index, "row": row, "alone": alone}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """``src_tokens`` and ``target`` (padding: not guessed), int64 [B, N], and ``parts``:
        their ``spans`` [B, G, 2], whether each is ``hidden`` [B, G], ``long_examples`` [B, N],
        ``global_examples`` [B, G] (:data:`NO_EXAMPLE` for padding). ``alone`` has all hidden ones
        as rows, with the same fields, and where each global token is, ``at`` int64 [S, 2]."""
        pad = self.dictionary.pad()
        parts = _batch([sample["row"] for sample in samples], pad)
        parts["alone"] = _alone([part for sample in samples for part in sample["alone"]], pad)
        return {
            "target": parts.pop("target"),
            "net_input": {"src_tokens": parts.pop("src_tokens"), "parts": parts},
            "ntokens": sum(len(sample["row"]["target"]) for sample in samples),
        }


def _row(pieces: Sequence[np.ndarray], ends: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """A row of examples: of each its tokens, int [n], and where its parts end. None is hidden."""
    sizes, number = np.array(list(map(len, pieces))), np.arange(len(pieces))
    owner = np.repeat(number, list(map(len, ends)))
    starts = [np.append(0, of_piece)[:-1].astype(int) for of_piece in ends]
    spans = np.stack([np.concatenate(starts), np.concatenate(ends)], -1)
    return {
        "src_tokens": np.concatenate(pieces),
        "spans": spans + (sizes.cumsum() - sizes)[owner, None],
        "hidden": np.zeros(len(spans), bool),
        "long_examples": np.repeat(number, sizes),
        "global_examples": owner,
    }


def _batch(rows: list[dict[str, np.ndarray]], pad: int) -> dict[str, Tensor]:
    fill = {"src_tokens": pad, "target": pad, "global_examples": NO_EXAMPLE}
    columns = {name: [torch.from_numpy(row[name]) for row in rows] for name in rows[0]}
    return {name: pad_sequence(x, True, fill.get(name, 0)) for name, x in columns.items()}


def _alone(parts: list[np.ndarray], pad: int) -> dict[str, Tensor]:
    """Parts as examples of rows, each of which has one global token."""
    at, sizes = torch.zeros(len(parts), 2, dtype=torch.int64), np.array(list(map(len, parts)), int)
    if not parts:
        return {"at": at}
    most = max(int(sizes.max()), _ALONE)
    rows = packed(sizes, np.ones_like(sizes), most, len(parts))
    for row, numbers in enumerate(rows):
        at[numbers, 0], at[numbers, 1] = row, torch.arange(len(numbers))
    made = [_row([parts[n] for n in numbers], sizes[numbers, None]) for numbers in rows]
    return {**_batch(made, pad), "at": at}
