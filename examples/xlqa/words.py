"""The words that subwords make up, their spelling and their vectors.

Everything is computed from the numbers of tokens, by tables of the dictionary, so that a model
needs nothing but tokens, in training and in answering.

Shape letters: B batch, N tokens, W words, P subwords of a word, C letters of a word, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_clusterformer.data.words import joins

LETTERS = 16  # C, of XLQA's words
_PIECES = 8  # P; what stands behind these in a word is not looked at
_BASE, _BITS = 0x9E3779B97F4A7C15, 1 << 64  # of :func:`spelling_code`
_LONGEST = 64  # letters of a subword whose spelling counts


class Words(NamedTuple):
    """The words of a batch."""

    of_token: Tensor  # each token's word, int64 [B, N]; the last one for padding
    first: Tensor  # each word's first token, int64 [B, W]; 0 for padding
    last: Tensor  # and its last one
    padding: Tensor  # bool [B, W], True where there is no word
    pieces: Tensor  # each word's first subwords, int64 [B, W, P]
    letters: Tensor  # each word's first letters, int64 [B, W, C]; 0: no more
    codes: Tensor  # of each word's spelling, as it is and in lower case, int64 [B, W, 2]

    def at_tokens(self, x: Tensor) -> Tensor:
        """Words' x [B, W, ...] at their tokens, [B, N, ...]."""
        index = self.of_token.reshape(*self.of_token.shape, *[1] * (x.dim() - 2))
        return x.gather(1, index.expand(*self.of_token.shape, *x.shape[2:]))

    def same(self, others: "Words") -> Tensor:
        """Where a word is spelt as one of others [B, V]: as it is and in lower case, bool
        [B, W, V, 2]; never for padding."""
        real = ~self.padding.unsqueeze(2) & ~others.padding.unsqueeze(1)
        return self.codes.unsqueeze(2).eq(others.codes.unsqueeze(1)) & real.unsqueeze(-1)


class Speller(nn.Module):
    """Puts tokens together to words.

    A word is a run of letters and digits without a blank, or one other subword, with a blank in
    front of it. Each of fairseq's own symbols is one, too. Tokens of the text and others, such as
    a title's, make up no word together. ``texts`` has what each symbol of the dictionary stands
    for; see :func:`texts_of`.
    """

    def __init__(self, dictionary: Dictionary, texts: Sequence[str]):
        super().__init__()
        self.padding_idx = dictionary.pad()
        bare = [text.strip()[:_LONGEST] for text in texts]
        alphabet = {letter: i for i, letter in enumerate(sorted(set("".join(bare))), 1)}
        self.num_letters = 1 + len(alphabet)

        def table(name: str, rows: list) -> None:
            self.register_buffer(name, torch.tensor(rows), persistent=False)

        # a part of a letter has no text; it belongs to the letters on either side
        special = [number < dictionary.nspecial for number in range(len(texts))]
        both = list(zip(special, texts, strict=True))
        table("_begins", [own or text[:1] != "" and not joins(text[0]) for own, text in both])
        table("_ends", [own or text.strip() != "" and not joins(text[-1]) for own, text in both])
        # a blank alone belongs to what follows it
        table("_is_blank", [text.isspace() for text in texts])
        table("_is_led", [own or text[:1].isspace() for own, text in both])
        table("_sizes", list(map(len, bare)))
        spelt = [[alphabet[x] for x in text[:LETTERS]] for text in bare]
        table("_letters", [letters + [0] * (LETTERS - len(letters)) for letters in spelt])
        table("_codes", [[spelling_code(t), spelling_code(t.lower())] for t in bare])
        powers = [pow(_BASE, i, _BITS) for i in range(_PIECES * _LONGEST)]
        table("_powers", list(map(_signed, powers)))

    def forward(self, tokens: Tensor, text_mask: Tensor | None = None) -> Words:
        """The words of tokens, int64 [B, N], with padding behind; bool [B, N] says which are of a
        text."""
        length = tokens.size(1)
        if not length:  # no document has a token: one word of padding
            tokens = tokens.new_full((len(tokens), 1), self.padding_idx)
            text_mask = None
        real = tokens.ne(self.padding_idx)
        begins = self._begins[tokens]  # whether a word begins at each token
        begins[:, 1:] |= self._ends[tokens[:, :-1]]
        begins[:, 1:] &= ~self._is_blank[tokens[:, :-1]] | self._is_led[tokens[:, 1:]]
        if text_mask is not None:
            begins[:, 1:] |= text_mask[:, 1:] != text_mask[:, :-1]
        begins[:, :1] = True
        begins &= real
        counts = begins.sum(1, keepdim=True)
        number = max(1, int(counts.max()))
        places = torch.arange(number, device=tokens.device)
        padding = places >= counts
        # a stable sort puts the first tokens of words in front, in their order
        first = (~begins).long().argsort(dim=1, stable=True)[:, :number]
        lengths = real.sum(1, keepdim=True)  # the last word ends with the row
        following = torch.cat([first[:, 1:], lengths], dim=1)
        last = torch.where(places + 1 < counts, following, lengths) - 1
        first, last = first.masked_fill(padding, 0), last.masked_fill(padding, 0)

        most = min(_PIECES, int((last - first).max()) + 1)
        place = first.unsqueeze(-1) + torch.arange(most, device=tokens.device)
        within = (place <= last.unsqueeze(-1)) & ~padding.unsqueeze(-1)
        place = place.clamp(max=tokens.size(1) - 1).flatten(1)
        pieces = tokens.gather(1, place).view_as(within)
        pieces = pieces.masked_fill(~within, self.padding_idx)
        return Words(
            (begins.cumsum(1) - 1).clamp(min=0)[:, :length],
            first,
            last,
            padding,
            pieces,
            *self._spelled(pieces),
        )

    def _spelled(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """The letters [B, W, C] and the codes [B, W, 2] of words."""
        sizes = self._sizes[pieces]
        before = sizes.cumsum(-1) - sizes  # letters of the word in front of each subword
        codes = (self._codes[pieces] * self._powers[before].unsqueeze(-1)).sum(-2)
        places = before.unsqueeze(-1) + torch.arange(LETTERS, device=pieces.device)
        own = self._letters[pieces]
        places = places.masked_fill(own.eq(0), LETTERS).clamp(max=LETTERS)  # and is cut off
        letters = own.new_zeros(*pieces.shape[:-1], LETTERS + 1)
        return letters.scatter_(-1, places.flatten(-2), own.flatten(-2))[..., :LETTERS], codes


class VectorTable(nn.Module):
    """Vectors of words that do not learn, and one that does, for all other words.

    A word is found as it is spelt or, failing that, in lower case. Checkpoints hold the codes of
    the spellings and the vectors, so that no file of vectors is needed afterwards.
    """

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("codes", torch.empty(0, dtype=torch.int64))
        # a parameter, so that bundles of half precision have them so
        self.vectors = nn.Parameter(torch.empty(0, width), requires_grad=False)
        self.unknown = nn.Parameter(0.1 * torch.randn(width))

    def set(self, words: Sequence[str], vectors: Tensor) -> None:
        """Take vectors [n, D] of words, each there once."""
        codes, order = torch.tensor([spelling_code(word) for word in words]).sort()
        self.codes = codes.to(self.codes.device)
        self.vectors.data = vectors[order].to(self.vectors)

    def forward(self, codes: Tensor) -> Tensor:
        """Vectors [B, W, D] of words, by their codes, int64 [B, W, 2]."""
        if not len(self.codes):
            return self.unknown.expand(*codes.shape[:-1], -1)
        places = torch.searchsorted(self.codes, codes).clamp(max=len(self.codes) - 1)
        as_it_is, found = (self.codes[places] == codes).unbind(-1)
        place = torch.where(as_it_is, *places.unbind(-1))
        known = (as_it_is | found).unsqueeze(-1)
        return torch.where(known, self.vectors[place], self.unknown)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Called before a checkpoint is loaded: make room for as many words as it has."""
        for own in ("codes", "vectors"):
            given, mine = state_dict.get(f"{name}.{own}"), getattr(self, own)
            if given is not None and given.shape[1:] == mine.shape[1:]:
                mine.data = mine.new_empty(given.shape)


def spelling_code(word: str) -> int:
    """A number of 64 bits (of two's complement) for a word's spelling.

    It is a polynomial in a fixed number, so that a word's code can be made of those of its parts:
    code(a + b) = code(a) + base^len(a) code(b).
    """
    code = 0
    for letter in reversed(word):
        code = (code * _BASE + ord(letter) + 1) % _BITS
    return _signed(code)


def _signed(number: int) -> int:
    return number - _BITS if number >= _BITS >> 1 else number
