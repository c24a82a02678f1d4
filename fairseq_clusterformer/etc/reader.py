"""``--arch etc_reader``: answers from structured documents, by ETC's encoder.

The question and the document are one long input (Ainslie et al. 2020, section 4 and appendix B).
There is a global token for all of it, for each token of the question, each paragraph and each
sentence (HotpotQA); or one for each candidate in place of the first (WikiHop), whose words stand
behind the question.

Shape letters: B batch, Q tokens of the question, N of the document, L of both, C candidates, K
mentions, G global tokens, D width.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.answers import TYPES, AnswerLogits
from fairseq_clusterformer.data.qa import Outline
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.models.reader import ReaderModel, check_padding
from fairseq_clusterformer.precision import ExactLinear

from .encoder import ETCModel, ETCOptions, register_etc
from .global_local import Structure

logger = logging.getLogger(__name__)

#: types of tokens, which ETC adds to their words; pre-training has the first two alone
OF_SENTENCE, OF_TEXT, OF_QUESTION, OF_PARAGRAPH, OF_ALL, OF_CANDIDATE = range(6)
IN_QUESTION, IN_TITLE, IN_CANDIDATE = range(6, 9)


class GlobalTokens(NamedTuple):
    """The global tokens of a question and its document."""

    words: Tensor  # symbols, <s> except for those of the question, int64 [G]
    types: Tensor  # of the constants above, int64 [G]
    # tokens [first, last) of the long input, the question before the document, that each stands
    # for, int64 [G, 2]
    spans: Tensor
    # the mentions of candidates: the global token, and tokens [first, last), int64 [K, 3]
    links: Tensor
    # that each belongs to, rising, int64 [G]: the token for all and each candidate are one by
    # themselves, and so are those of the question (the authors' code)
    paragraphs: Tensor


@dataclass(frozen=True)
class DocumentStructure:
    """What a reader of structured documents is given of them; the trunk's data set asks it."""

    sentences: bool = True  # they have global tokens
    supporting: bool = False  # it says which sentences support an answer
    by_parts: bool = True  # global tokens stand for parts of the document
    most: int = 0  # global tokens of a question and its document, if by parts; 0: any number

    def read(
        self, outline: Outline, starts: Tensor, length: int, question: int
    ) -> tuple[Outline, int, int]:
        """What has a global token of an outline, with paragraphs at ``starts``, int64 [P], for so
        many tokens of the document and of the question: paragraphs and sentences, in their order,
        as long as there is room. Returns the outline, how many paragraphs have one, and how many
        of both have none. Raises ValueError: no room for the question and its candidates."""
        outline = outline.within(length)
        if not self.sentences:
            outline = outline.with_sentences(0)
        starts = starts[starts < length]
        if not (self.by_parts and self.most):
            return outline, len(starts), 0
        first = max(len(outline.names), 1) + question - 2
        if first >= self.most:
            given = f"{first} global tokens of the question and of its candidates"
            allowed = f"{self.most - 1} or fewer (--max-global-positions)"
            raise ValueError(f"{given}; allowed: {allowed}")
        number = torch.arange(len(starts))
        place = number + torch.searchsorted(outline.paragraph_of(starts), number)
        paragraphs = int((place < self.most - first).sum())
        kept = outline.with_sentences(self.most - first - paragraphs)
        left_out = len(starts) + len(outline.sentences) - paragraphs - len(kept.sentences)
        return kept, paragraphs, left_out

    def rows(
        self, question: Tensor, starts: Tensor, length: int, outline: Outline, symbols: Dictionary
    ) -> tuple[Tensor, GlobalTokens]:
        """A question, ``<s> question </s>``, and then ``<s>`` and the words of each candidate,
        int64 [Q]; and the global tokens of them and of the document, whose paragraphs start at
        int64 [P]."""
        asked, bos = len(question) - 2, symbols.bos()
        names = [torch.cat([question.new_tensor([bos]), name]) for name in outline.names]
        question = torch.cat([question, *names])
        before = len(question)
        # of each its symbol, type, first token and the one past the last
        ends = accumulate(map(len, names), initial=asked + 2)
        found = [(bos, OF_CANDIDATE, *span) for span in pairwise(ends)] or [(bos, OF_ALL, 0, 1)]
        own = len(found)
        paragraphs = [*range(own), *[own] * asked]
        words = enumerate(question[1 : asked + 1].tolist(), 1)
        found += [(word, OF_QUESTION, place, place + 1) for place, word in words]
        starts = starts[starts < length]
        spans = pairwise([*starts.tolist(), length])
        parts = [(number, OF_PARAGRAPH, *span) for number, span in enumerate(spans)]
        of_sentences = zip(outline.paragraph_of(starts).tolist(), outline.sentences, strict=True)
        parts += [(number, OF_SENTENCE, *span.tolist()) for number, span in of_sentences]
        parts.sort(key=itemgetter(0))  # a paragraph stands in front of its sentences
        if self.by_parts and self.most:
            parts = parts[: self.most - len(found)]
        paragraphs += [own + 1 + number for number, *_ in parts]
        found += [(bos, kind, before + first, before + last) for _, kind, first, last in parts]
        links, found = outline.mentions + torch.tensor([0, before, before]), torch.tensor(found)
        words, types, spans = found[:, 0], found[:, 1], found[:, 2:]
        return question, GlobalTokens(words, types, spans, links, torch.tensor(paragraphs))

    def batch(self, rows: Sequence[GlobalTokens], pad: int) -> dict[str, Tensor]:
        """Global tokens of B questions by their fields; padding is ``pad``, or an empty span."""
        columns = zip(GlobalTokens._fields, zip(*rows, strict=True), strict=True)
        return {name: pad_sequence(x, True, pad if name == "words" else 0) for name, x in columns}


@dataclass
class ETCReaderConfig(ETCOptions):
    """Options of the encoder, and of what it answers."""

    structure: str = option(
        "contexts",
        "contexts: paragraphs are apart, their long tokens do not see each other (HotpotQA, "
        "WikiHop); text: they follow each other (Natural Questions); flat: text where the global "
        "tokens of sentences and of the question alone stand for something (the ablation)",
        choices=("contexts", "text", "flat"),
    )
    fixed_blocks: bool = option(False, "global tokens stand for --block tokens each")
    paragraphs_alone: bool = option(
        False, "sentences have no global tokens, so that longer documents fit (Natural Questions)"
    )
    supporting_facts: bool = option(False, "say which sentences support an answer; data must, too")
    narrow_cls: bool = option(
        False, "with --structure text --hard-global, the global <s> sees the long <s> alone"
    )


class StructureHeads(nn.Module):
    """Linear maps in float32 or more: spans from the long stream; paragraphs, types, supporting
    sentences (if asked for) and candidates from the tokens that stand for them."""

    def __init__(self, embed_dim: int, *, supporting: bool):
        super().__init__()
        self.span = ExactLinear(embed_dim, 2)
        self.paragraph, self.candidate = (ExactLinear(embed_dim, 1) for _ in range(2))
        self.supporting = ExactLinear(embed_dim, 1) if supporting else None
        self.answer_type = ExactLinear(embed_dim, len(TYPES))
        for head in self.children():
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        # all types are equally likely, and stay so if the data has no types
        nn.init.zeros_(self.answer_type.weight)
        #: whether some question of the training had candidates
        self.register_buffer("had_candidates", torch.tensor(False))
        self.told = False  # that there were none

    def forward(
        self, document: Tensor, of_global: Tensor, types: Tensor, starts: Tensor, text: Tensor
    ) -> AnswerLogits:
        """Logits of B documents, of states of their tokens, [B, N, D], and of global ones, [B, G,
        D]; of global tokens' types (-1: padding) and first document tokens (negative in front of
        it), int64 [B, G]; and of where a short answer can begin and end, bool [B, N]."""
        spans = self.span(document).masked_fill(~text.unsqueeze(-1), -torch.inf)
        rows, tokens = types.eq(OF_PARAGRAPH).nonzero(as_tuple=True)
        of_paragraphs = self.paragraph(of_global[rows, tokens]).squeeze(-1)
        paragraph = spans.new_full(text.shape, -torch.inf)
        paragraph = paragraph.index_put((rows, starts[rows, tokens]), of_paragraphs)
        # a question with candidates has no global token for all
        of_types = self.answer_type(of_global[:, 0]) * types[:, :1].eq(OF_ALL)
        sentences = None
        if self.supporting is not None:
            sentences = _chosen(self.supporting(of_global), types.eq(OF_SENTENCE))
        candidates = _chosen(self.candidate(of_global), types.eq(OF_CANDIDATE))
        if not candidates.size(1):
            # workers of a distributed training expect a gradient, of 0, for each parameter
            of_types, candidates = of_types + candidates.sum(), None
        elif self.training:
            self.had_candidates.fill_(True)
        elif not (self.told or self.had_candidates):
            logger.warning("this reader was never trained on candidates: its choices are random")
            self.told = True
        return AnswerLogits(*spans.unbind(-1), paragraph, of_types, sentences, candidates)


def _chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    """Those of [B, G, 1] that are chosen, bool [B, G], in order; -inf where a row has no more."""
    rows = zip(logits.squeeze(-1), chosen, strict=True)
    return pad_sequence([row[of_row] for row, of_row in rows], True, -torch.inf)


@register_etc("etc_reader", ETCReaderConfig)
class ETCReader(ETCModel, ReaderModel):
    """An encoder of questions and the documents behind them, and what it answers."""

    def __init__(self, args, task):
        super().__init__(args, task)
        self.heads = StructureHeads(args.encoder_embed_dim, supporting=args.supporting_facts)
        self.structure = DocumentStructure(
            sentences=not args.paragraphs_alone,
            supporting=args.supporting_facts,
            by_parts=not (args.fixed_blocks or args.clusters),
        )

    @classmethod
    def check(cls, args, task) -> None:
        structure, apart = args.structure, args.clusters or args.fixed_blocks
        if args.clusters and args.fixed_blocks:
            raise refused("--clusters", args.clusters, "0 with --fixed-blocks")
        if structure != "contexts" and apart:
            raise refused("--structure", structure, "contexts with --clusters or --fixed-blocks")
        if args.narrow_cls and not (structure == "text" and args.hard_global):
            raise refused("--structure", structure, "text, and --hard-global, with --narrow-cls")
        if args.paragraphs_alone and args.supporting_facts:
            raise refused("--paragraphs-alone", "given", "without --supporting-facts")

    def forward(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        text_mask: Tensor | None,
        structure: dict[str, Tensor],
    ) -> tuple[AnswerLogits, dict[str, Any]]:
        """As `ClusterformerReader.forward`; ``structure`` is a batch of global tokens, of
        `DocumentStructure`."""
        words, by_parts = self.encoder.dictionary, self.structure.by_parts
        given, pad = (question_tokens, document_tokens), words.pad()
        check_padding(*given, pad)
        _, text = self.starts_and_text(document_tokens, text_mask)
        text, both = text & document_tokens.ne(pad), torch.cat(given, dim=1)
        asked, read = (tokens.ne(pad).sum(1, keepdim=True) for tokens in given)
        place = torch.arange(int((asked + read).max()), device=both.device).expand(len(both), -1)
        in_question, padding = place < asked, place >= asked + read
        # the place in `both` of each token: behind the question, its padding is skipped
        source = torch.where(in_question, place, place - asked + question_tokens.size(1))
        source = source.clamp(max=both.size(1) - 1)
        tokens = both.gather(1, source).masked_fill(padding, pad)
        ends = tokens.eq(words.eos())  # candidates stand behind the question's
        types = torch.where(ends.cumsum(1) > ends, IN_CANDIDATE, IN_QUESTION)
        is_text = torch.cat([torch.zeros_like(question_tokens).bool(), text], 1).gather(1, source)
        types = torch.where(in_question, types, torch.where(is_text, OF_TEXT, IN_TITLE))
        given = {}
        if by_parts:
            # each begins with <s>; the question's <s> is a paragraph of its own
            begins = tokens.eq(words.bos()) | place.eq(asked) | place.eq(1)
            given["structure"] = self._parts(structure, padding, begins.cumsum(1))
            given |= {"global_tokens": structure["words"], "global_types": structure["types"]}
        streams = self.encoder(tokens, types=types, **given)

        def of_long(places: Tensor) -> Tensor:
            """States at places [B, n] of the long input, [B, n, D]."""
            places = places.clamp(max=tokens.size(1) - 1).unsqueeze(-1)
            return streams.of_long.take_along_dim(places, 1)

        first = structure["spans"][:, :, 0]
        logits = self.heads(
            of_long(asked + torch.arange(document_tokens.size(1), device=tokens.device)),
            # of blocks or clusters, each part's first long token instead
            streams.of_global if by_parts else of_long(first),
            structure["types"].masked_fill(structure["words"].eq(pad), -1),
            first - asked,
            text,
        )
        return logits, {"reports": {"encoder": []}}

    def _parts(self, given: dict[str, Tensor], padding: Tensor, paragraphs: Tensor) -> Structure:
        """Of the long input's padding and paragraphs, [B, L]."""
        types, hidden = given["types"], given["words"].eq(self.encoder.dictionary.pad())
        of_candidate = types.eq(OF_CANDIDATE) & ~hidden
        linked, seen = torch.ones_like(hidden), {}
        # hard g2l exempts candidates and their question
        exempt = types.eq(OF_QUESTION) & of_candidate.any(1, keepdim=True) | of_candidate
        if self.args.structure == "flat":
            linked = types.eq(OF_SENTENCE) | types.eq(OF_QUESTION) | of_candidate
        else:
            seen["links"] = given["links"]
            if not self.args.narrow_cls:
                exempt = exempt | types.eq(OF_ALL)
        if self.args.structure == "contexts":
            seen |= {"paragraphs": given["paragraphs"], "long_paragraphs": paragraphs}
            linked = types.ne(OF_ALL)
        return Structure(
            given["spans"] * linked.unsqueeze(-1),
            padding.size(1),
            long_padding=padding,
            global_padding=hidden,
            exempt=exempt & ~hidden,
            **seen,
        )
