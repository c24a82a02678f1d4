"""What readers share that read words: BiDAF (Seo et al. 2017) and QANet (Yu et al. 2018).

Both are built as in XLQA, a report on SQuAD 2.0. Words and their letters go through a highway
network. The document attends to the question, and the question to the document. Two softmaxes
over the document say where an answer begins and ends; the ``<s>`` in front of the document stands
for "no answer" in both.

Shape letters: B batch, N tokens and W words of the longest document, V words of the longest
question, C letters of a word, D width.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_clusterformer.answers import AnswerLogits
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.models.reader import ReaderModel, check_padding
from fairseq_clusterformer.models.word_vectors import read_word_vectors
from fairseq_clusterformer.precision import ExactLinear, at_least_float32

from .words import Speller, VectorTable, Words


@dataclass
class WordReaderOptions(FairseqDataclass):
    """What each word of a question and of a document begins as."""

    word_vectors: str = option(
        "", "text file of word vectors, such as GloVe; they are not trained"
    )
    word_dim: int = option(300, "numbers of a word vector; 0: the model has none", at_least=0)
    max_words: int = option(
        50_000, "words to take from --word-vectors: the first ones", at_least=1
    )
    subword_dim: int = option(
        64, "width of the subwords' embeddings, whose mean a word has; 0: none", at_least=0
    )
    letter_dim: int = option(64, "width of the letters' embeddings", at_least=1)
    letter_filters: int = option(
        20, "filters of the convolution over a word's letters; 0: none", at_least=0
    )
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
        """[..., D] to the same."""
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
    ``width``; letters are mapped together with them (``joint``), or put behind: ``self.width`` is
    that of the result."""

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
        """[B, W, D]."""
        parts = []
        if self.vectors is not None:
            parts.append(self.vectors(words.codes))
        if self.subwords is not None:
            number = words.pieces.ne(self.speller.padding_idx).sum(-1, keepdim=True)
            parts.append(self.subwords(words.pieces).sum(-2) / number.clamp(min=1))
        letters = [] if self.letters is None else [self.letters(words.letters)]
        x = torch.cat(parts + letters * self.joint, dim=-1)
        x = self.project(dropout(x, self.dropout, self.training))
        return self.highway(torch.cat([x, *letters], dim=-1) if not self.joint else x)


class ContextQueryAttention(nn.Module):
    """Attention of a document to its question and back (XLQA section 4.2).

    A word c and a word q of the question are as alike as w . [c; q; c * q] + b. By S, the softmax
    of that over the question, and T, over the document, a = S Q and b = S T' C.

    With matches, a learned number is added where two words are spelt alike, and the result says of
    each word whether it is in the question: the exact match of Chen et al. 2017, but after the
    encoding of the document, which so is the same for any question. fairseq's own symbols have no
    spelling and count as alike.
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
        if self.of_match is not None:
            same = words.same(asked).to(document)
            likeness = likeness + same @ self.of_match
            found = [same.amax(2)]
        likeness = at_least_float32(likeness + self.bias)

        def softmax(hidden: Tensor, dim: int) -> Tensor:
            """Finite where all is hidden."""
            lowest = torch.finfo(likeness.dtype).min
            return likeness.masked_fill(hidden, lowest).softmax(dim).to(document)

        of_question, of_document = (
            softmax(asked.padding[:, None], 2),
            softmax(words.padding[..., None], 1),
        )
        a, b = of_question @ question, of_question @ (of_document.mT @ document)
        return torch.cat([document, a, document * a, document * b, *found], dim=-1)


class SpanHeads(nn.Module):
    """Where an answer begins and ends, or that there is none; in float32 or more.

    In front of the words, both softmaxes have a place for each answer that is no span: the
    leading ``<s>`` stands for "no answer", as XLQA's leading word outside of the vocabulary does.
    """

    def __init__(self, width: int):
        super().__init__()
        self.begin, self.end = (ExactLinear(width, 1) for _ in range(2))
        self.others = nn.ModuleList(ExactLinear(width, 3) for _ in range(2))  # yes, no, long
        self.paragraph = ExactLinear(width, 1)

    def forward(self, reading: Reading, starts: Tensor, text: Tensor) -> AnswerLogits:
        """Logits of B documents; ``starts`` are each ``<s>``, and ``text`` is True where a short
        answer can begin and end, bool [B, N]."""
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
    """An encoder of words, and what it answers.

    The encoder has ``dictionary``, ``embedding``, ``head_width`` (of `Reading.begin` and ``end``)
    and two methods. ``read(asked, words)`` makes a `Reading` of documents for the questions
    ``asked``. ``clusters(reading)`` says which clusters the tokens of one document are in.
    """

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

    def forward(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        text_mask: Tensor | None = None,
    ) -> tuple[AnswerLogits, dict[str, Any]]:
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
        """Start from the first ``--max-words`` of the file of ``--word-vectors``. Raises
        ValueError for a model without vectors, or a file that cannot be read or is of another
        width."""
        if not (path := self.args.word_vectors):
            return
        if not self.args.word_dim:
            raise ValueError(f"--word-vectors is {path}; allowed: none, for --word-dim is 0")
        most = self.args.max_words
        words = read_word_vectors(path, self.args.word_dim, "--word-dim", most=most)
        self.encoder.embedding.vectors.set(*words)
