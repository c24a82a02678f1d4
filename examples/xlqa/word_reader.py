"""What readers of words share, as in XLQA, a report on SQuAD 2.0. The words that subwords make up,
and their spelling, are computed from the numbers of tokens, by tables of the dictionary: models
need nothing but tokens.

Shape letters: B batch, N tokens and W words of the longest document, V words of the longest
question, P subwords and C letters of a word, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from fairseq_clusterformer.answers import AnswerLogits
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.data.characters import joins
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.models.pretrained import read_word_vectors
from fairseq_clusterformer.models.reader import ReaderModel, check_padding
from fairseq_clusterformer.precision import ExactLinear, at_least_float32

LETTERS = 16  # C, of XLQA's words
_PIECES = 8  # P; what stands behind these in a word is not looked at
_BASE, _BITS = 0x9E3779B97F4A7C15, 1 << 64  # of :func:`spelling_code`
_LONGEST = 64  # letters of a subword whose spelling counts
FILTERS = "filters of the convolution over a word's letters; 0: none"


class Words(NamedTuple):
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


class Speller(nn.Module):
    """Puts tokens together to words. A word is a run of letters and digits without a blank, or one
    other subword, with a blank in front of it. Each of fairseq's own symbols is one, too. Tokens
    of the text and others, such as a title's, make up no word together. ``texts`` has what each
    symbol of the dictionary stands for."""

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
        powers = (pow(_BASE, i, _BITS) for i in range(_PIECES * _LONGEST))
        table("_powers", [power - (power >> 63) * _BITS for power in powers])

    def forward(self, tokens: Tensor, text_mask: Tensor | None = None) -> Words:
        """The words of tokens, int64 [B, N], with padding behind; of a text, by bool [B, N]."""
        length = tokens.size(1)
        tokens = pad(tokens, (0, int(not length)), value=self.padding_idx)  # one word, or more
        real = tokens.ne(self.padding_idx)
        begins = self._begins[tokens]  # whether a word begins at each token
        begins[:, 1:] |= self._ends[tokens[:, :-1]]
        begins[:, 1:] &= ~self._is_blank[tokens[:, :-1]] | self._is_led[tokens[:, 1:]]
        if text_mask is not None:
            begins[:, 1:] |= text_mask[:, 1:] != text_mask[:, :-1]
        begins[:, :1] = True
        begins &= real
        of_token = (begins.cumsum(1) - 1).clamp(min=0)
        counts = begins.sum(1, keepdim=True)
        padding = torch.arange(max(1, int(counts.max())), device=tokens.device) >= counts
        # of each token; of padding, the last one before it
        place = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        place = place.minimum((real.sum(1, keepdim=True) - 1).clamp(min=0))
        ends = ("amin", "amax")
        none, how = torch.zeros_like(padding, dtype=torch.long), {"include_self": False}
        first, last = (none.scatter_reduce(1, of_token, place, end, **how) for end in ends)

        most = min(_PIECES, int((last - first).max()) + 1)
        place = first.unsqueeze(-1) + torch.arange(most, device=tokens.device)
        within = (place <= last.unsqueeze(-1)) & ~padding.unsqueeze(-1)
        place = place.clamp(max=tokens.size(1) - 1).flatten(1)
        pieces = tokens.gather(1, place).view_as(within)
        pieces = pieces.masked_fill(~within, self.padding_idx)
        spelled = self._spelled(pieces)
        return Words(of_token[:, :length], first, last, padding, pieces, *spelled)

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
    """Vectors of words that do not learn, and one that does, for all other words. A word is found
    as it is spelt or, failing that, in lower case. Checkpoints hold the codes of the spellings and
    the vectors, so that no file of vectors is needed afterwards."""

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
    """A number of 64 bits (of two's complement) for a word's spelling: a polynomial in a fixed
    number, so that code(a + b) = code(a) + base^len(a) code(b)."""
    code = 0
    for letter in reversed(word):
        code = (code * _BASE + ord(letter) + 1) % _BITS
    return code - (code >> 63) * _BITS


@dataclass
class WordReaderOptions(FairseqDataclass):
    """What each word of a question and of a document begins as."""

    word_vectors: str = option("", "text file of word vectors, such as GloVe; not trained")
    word_dim: int = option(300, "numbers of a word vector; 0: the model has none", at_least=0)
    max_words: int = option(50000, "words to take from --word-vectors: the first ones", at_least=1)
    subword_dim: int = option(64, "width of the subwords' embeddings; 0: none", at_least=0)
    letter_dim: int = option(64, "width of the letters' embeddings", at_least=1)
    letter_filters: int = option(20, FILTERS, at_least=0)
    highway_layers: int = option(2, "layers of the highway network", at_least=0)
    word_matches: bool = option(False, "tell where a word of the question stands in the document")


class Reading(NamedTuple):
    """What an encoder makes of questions and their documents."""

    words: Words  # of the documents
    begin: Tensor  # what says where an answer begins, [B, W, head_width]
    end: Tensor  # and where it ends
    #: number and reports of each layer that clusters; those of questions first
    layers: list[tuple[int, list[Report]]]


class Highway(nn.Module):
    """Layers that change as much of a vector as they open a gate for (Srivastava et al. 2015)."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.transforms = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for gate, transform in zip(self.gates, self.transforms, strict=True):
            x = x.lerp(transform(x).relu(), gate(x).sigmoid())
        return x


class LetterConvolution(nn.Module):
    """Each filter's largest value over the letters of a word (Kim 2014; XLQA section 4.1). A
    filter sees three letters, of which those outside of the word are 0."""

    def __init__(self, letters: int, width: int, filters: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Embedding(letters, width, padding_idx=0)
        self.convolution = nn.Conv1d(width, filters, 3, padding=1)

    def forward(self, letters: Tensor) -> Tensor:
        """Letters of words, int64 [B, W, C], to [B, W, filters]; 0 for a word without letters."""
        x = dropout(self.embedding(letters), self.dropout, self.training)
        x = self.convolution(x.flatten(0, 1).transpose(1, 2)).relu()
        x = x.masked_fill(letters.flatten(0, 1).eq(0).unsqueeze(1), 0.0)
        return x.amax(-1).unflatten(0, letters.shape[:2])


class WordEmbedding(nn.Module):
    """Words by their vectors, their subwords and their letters. The first two are mapped to
    ``width``; letters are mapped together with them (``joint``), or put behind."""

    def __init__(self, task, args, *, width: int, joint: bool):
        super().__init__()
        dictionary = task.source_dictionary
        self.dropout, self.joint = args.dropout, joint
        self.speller = Speller(dictionary, task.symbol_texts)
        self.vectors = VectorTable(args.word_dim) if args.word_dim else None
        self.subwords = self.letters = None
        if args.subword_dim:
            self.subwords = nn.Embedding(len(dictionary), args.subword_dim, dictionary.pad())
            nn.init.normal_(self.subwords.weight, std=0.3)
            nn.init.zeros_(self.subwords.weight[dictionary.pad()])
        if args.letter_filters:
            sizes = (self.speller.num_letters, args.letter_dim, args.letter_filters)
            self.letters = LetterConvolution(*sizes, args.dropout)
        inputs = args.word_dim + args.subword_dim + joint * args.letter_filters
        self.project = nn.Linear(inputs, width, bias=False)
        self.width = width + (not joint) * args.letter_filters
        self.highway = Highway(self.width, args.highway_layers)

    def forward(self, words: Words) -> Tensor:
        parts = [] if self.vectors is None else [self.vectors(words.codes)]
        if self.subwords is not None:
            number = words.pieces.ne(self.speller.padding_idx).sum(-1, keepdim=True)
            parts.append(self.subwords(words.pieces).sum(-2) / number.clamp(min=1))
        letters = [] if self.letters is None else [self.letters(words.letters)]
        x = torch.cat(parts + letters * self.joint, dim=-1)
        x = self.project(dropout(x, self.dropout, self.training))
        return self.highway(torch.cat([x, *letters], dim=-1) if not self.joint else x)


class ContextQueryAttention(nn.Module):
    """Attention of a document to its question and back (XLQA section 4.2). A word c and a word q
    of the question are as alike as w . [c; q; c * q] + b. By S, the softmax of that over the
    question, and T, over the document, a = S Q and b = S T' C.

    With matches, a learned number is added where two words are spelt alike, and the result says of
    each word whether it is in the question (the exact match of Chen et al. 2017). fairseq's own
    symbols have no spelling and count as alike.
    """

    def __init__(self, width: int, *, matches: bool = False):
        super().__init__()
        self.width = 4 * width + 2 * matches
        self.of_match = nn.Parameter(torch.ones(2)) if matches else None
        self.of_document, self.of_question = (nn.Linear(width, 1, bias=False) for _ in range(2))
        self.of_both = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.uniform_(self.of_both, -(width**-0.5), width**-0.5)

    def forward(self, document: Tensor, question: Tensor, words: Words, asked: Words) -> Tensor:
        """Of C [B, W, D] and Q [B, V, D], and of the words of both: [c; a; c * a; c * b],
        [B, W, 4 D], or with matches [c; a; c * a; c * b; m], [B, W, 4 D + 2]."""
        likeness = (document * self.of_both) @ question.mT  # [B, W, V]
        likeness = likeness + self.of_document(document) + self.of_question(question).mT
        found = []
        if self.of_match is not None:  # where words are spelt alike, [B, W, V, 2]
            same = words.codes.unsqueeze(2) == asked.codes.unsqueeze(1)
            hidden = words.padding.unsqueeze(2) | asked.padding.unsqueeze(1)
            same = same.masked_fill(hidden.unsqueeze(-1), False).to(document)
            likeness = likeness + same @ self.of_match
            found = [same.amax(2)]
        likeness = at_least_float32(likeness + self.bias)

        lowest = torch.finfo(likeness.dtype).min  # so that both are finite where all is hidden
        of_question = likeness.masked_fill(asked.padding[:, None], lowest).softmax(2).to(document)
        of_document = likeness.masked_fill(words.padding[..., None], lowest).softmax(1)
        of_document = of_document.to(document)
        a, b = of_question @ question, of_question @ (of_document.mT @ document)
        return torch.cat([document, a, document * a, document * b, *found], dim=-1)


class SpanHeads(nn.Module):
    """Two softmaxes over a document, in float32 or more: where an answer begins and ends. In front
    of the words, both have a place for each answer that is no span: the leading ``<s>`` stands for
    "no answer", as XLQA's leading word outside of the vocabulary does."""

    def __init__(self, width: int):
        super().__init__()
        self.begin, self.end = (ExactLinear(width, 1) for _ in range(2))
        self.others = nn.ModuleList(ExactLinear(width, 3) for _ in range(2))  # yes, no, long
        self.paragraph = ExactLinear(width, 1)

    def forward(self, reading: Reading, starts: Tensor, text: Tensor) -> AnswerLogits:
        """Logits of documents, by each ``<s>`` and where short answers can stand, bool [B, N]."""
        words = reading.words
        places = torch.arange(starts.size(1), device=starts.device)
        bounds = torch.stack([words.at_tokens(x) for x in (words.first, words.last)], dim=-1)
        logits, slots = [], []
        sides = (self.begin, reading.begin), (self.end, reading.end)
        for side, (head, x) in enumerate(sides):
            of_words = head(x).squeeze(-1)
            # yes, no, long and none, all read at the leading <s>: [B, 4]
            slots.append(torch.cat([self.others[side](x[:, 0]), of_words[:, :1]], dim=-1))
            # a word begins at its first token, and ends at its last one
            own = bounds[..., side].eq(places) & text
            logits.append(words.at_tokens(of_words).masked_fill(~own, -torch.inf))
        paragraph = words.at_tokens(self.paragraph(reading.begin).squeeze(-1))
        paragraph = paragraph.masked_fill(~starts, -torch.inf)
        return AnswerLogits.shared(*logits, paragraph, torch.stack(slots, dim=1), bounds)


class WordReader(ReaderModel):
    """An encoder of words, and what it answers. The encoder has ``dictionary``, ``embedding``,
    ``head_width`` (of `Reading.begin` and ``end``), and ``read(asked, words)``, which makes a
    `Reading` of documents for the questions ``asked``."""

    windows = 32

    def __init__(self, args, task):
        super().__init__(args, task)
        self.heads = SpanHeads(self.encoder.head_width)

    @classmethod
    def check(cls, args, task) -> None:
        if not args.word_dim + args.subword_dim:
            raise ValueError("--subword-dim is 0; allowed: 1 or more, where --word-dim is 0")
        if args.word_vectors and not args.word_dim:
            raise ValueError("--word-dim is 0; allowed: the width of --word-vectors")

    def forward(self, question_tokens: Tensor, document_tokens: Tensor, text_mask=None) -> tuple:
        """As `ClusterformerReader.forward`."""
        spell, pad = self.encoder.embedding.speller, self.encoder.dictionary.pad()
        check_padding(question_tokens, document_tokens, pad)
        starts, text = self.starts_and_text(document_tokens, text_mask)
        asked, words = spell(question_tokens), spell(document_tokens, text)
        reading = self.encoder.read(asked, words)
        reports = [report for _, reports in reading.layers for report in reports]
        logits = self.heads(reading, starts, text & document_tokens.ne(pad))
        return logits, {"reading": reading, "reports": {"encoder": reports}}

    def load_initial_weights(self) -> None:
        """Start from the first words of ``--word-vectors``; ValueError: a file of another form."""
        if path := self.args.word_vectors:
            how = {"most": self.args.max_words}
            words = read_word_vectors(path, self.args.word_dim, "--word-dim", **how)
            self.encoder.embedding.vectors.set(*words)
