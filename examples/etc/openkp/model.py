"""``--arch etc_keyphrases``: keyphrases of web pages, by ETC's encoder (Ainslie et al. 2020,
section 4 and appendix B: OpenKP). Where the paper is brief, this follows the authors' code: the
layers of what nodes look like, the ranges of pixels, the buckets of font sizes, and the norms.

Shape letters: B batch, N tokens, W words, G nodes, D width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.etc.encoder import ETCModel, ETCOptions, register_etc
from fairseq_clusterformer.etc.global_local import Structure
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.precision import at_least_float32

from .pages import MOST_WORDS

#: the largest font size of each bucket; larger ones are the last, the 24th
FONT_SIZES = (0, *range(8, 25), 29, 34, 39, 44, 49)
#: places among the 20 numbers of a node (see `pages.VISUAL`)
_CROSSED = (4, 6, 9)  # block, heading, bold
_FONTS = (8, 18)  # of the node and of its parent
_FLAGS = (5, 7, 16, 17, 19)  # inline, leaf; the parent's heading, leaf, bold
#: of the node and of its parent: x, width, y and height, and the pixels that become -1 and 1
_PIXELS = (0, 1, 2, 3, 10, 11, 12, 13)
_RANGES = ((-50, 1500), (0, 1500), (-50, 6000), (0, 18000)) * 2


@dataclass
class ETCKeyphrasesConfig(ETCOptions):
    no_visual_features: bool = option(False, "do not read what the nodes of a page look like")
    fixed_blocks: bool = option(False, "global tokens stand for --block tokens each")


class VisualFeatures(nn.Module):
    """What a node looks like, as a vector (appendix B): its font size and that of its parent, in
    24 buckets; block, heading and bold together; and two layers over all other numbers."""

    def __init__(self, embed_dim: int):
        super().__init__()
        buckets = len(FONT_SIZES) + 1
        self.fonts = nn.ModuleList(nn.Embedding(buckets, embed_dim) for _ in _FONTS)
        self.crossed = nn.Embedding(2 ** len(_CROSSED), embed_dim)
        self.dense = nn.ModuleList(
            nn.Linear(inputs, embed_dim) for inputs in (len(_PIXELS) + len(_FLAGS), embed_dim)
        )
        for layer in (*self.fonts, self.crossed, *self.dense):
            nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04)
        for layer in self.dense:
            nn.init.zeros_(layer.bias)
        # whole numbers, which stay what they are in a model of half precision
        self.register_buffer("ranges", torch.tensor(_RANGES), persistent=False)
        self.register_buffer("sizes", torch.tensor(FONT_SIZES), persistent=False)

    def forward(self, visual: Tensor) -> Tensor:
        """[B, G, 20], int64, to [B, G, D]."""
        x = self.crossed(sum(visual[..., i] << n for n, i in enumerate(reversed(_CROSSED))))
        for place, embedding in zip(_FONTS, self.fonts, strict=True):
            x = x + embedding(torch.bucketize(visual[..., place].contiguous(), self.sizes))
        least, most = self.ranges.unbind(-1)  # which become -1 and 1
        pixels = 2 * (visual[..., _PIXELS].clamp(least, most) - least) / (most - least) - 1
        dense = torch.cat([pixels, visual[..., _FLAGS]], dim=-1).to(x.dtype)
        for layer in self.dense:
            dense = gelu(layer(dense))
        return x + dense


class PhraseHead(nn.Module):
    """Logits of n-grams, by convolutions of widths 1 to 5 over words, sums of subwords' states."""

    def __init__(self, embed_dim: int):
        super().__init__()
        widths = range(1, MOST_WORDS + 1)
        self.word_norm = nn.LayerNorm(embed_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(embed_dim, embed_dim, n) for n in widths)
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dim) for _ in widths)
        self.logits = nn.ModuleList(nn.Linear(embed_dim, 1, bias=False) for _ in widths)
        for width, convolution, linear in zip(widths, self.convolutions, self.logits, strict=True):
            nn.init.trunc_normal_(convolution.weight, std=0.02 / math.sqrt(width))
            nn.init.zeros_(convolution.bias)
            nn.init.trunc_normal_(linear.weight, std=0.02)

    def forward(self, states: Tensor, words: Tensor, num_words: Tensor) -> Tensor:
        """Logits, [B, 5, W]: row i has those of n-grams of i + 1 words, by their first word; -inf
        where there is none. Of tokens' states [B, N, D], 0 for padding, and words, int64 [B, N];
        W is the largest of ``num_words``, int64 [B]."""
        number = int(num_words.max())
        room = max(number, MOST_WORDS)  # a width without words has a gradient too, of 0
        x = states.new_zeros(len(states), room, states.size(-1))
        x = x.scatter_add(1, words.unsqueeze(-1).expand_as(states), states)
        x = self.word_norm(x).transpose(1, 2)
        place, found = torch.arange(room, device=x.device), []
        layers = zip(self.convolutions, self.norms, self.logits, strict=True)
        for more, (convolution, norm, linear) in enumerate(layers):
            logits = linear(norm(gelu(convolution(x)).transpose(1, 2))).squeeze(-1)
            behind = place + more >= num_words.unsqueeze(1)
            found.append(pad(logits, (0, more)).masked_fill(behind, -torch.inf))
        return torch.stack(found, dim=1)[..., :number]


@register_etc("etc_keyphrases", ETCKeyphrasesConfig)
class ETCKeyphrases(ETCModel):
    """ETC's encoder, with a global token for each node of a page, and a :class:`PhraseHead`."""

    def __init__(self, args, task):
        super().__init__(args, task)
        self.visual = None
        if not (args.no_visual_features or args.fixed_blocks):
            self.visual = VisualFeatures(args.encoder_embed_dim)
        self.head = PhraseHead(args.encoder_embed_dim)

    @classmethod
    def check(cls, args, task) -> None:
        if args.clusters:
            allowed = "0 for keyphrases, where global tokens stand for nodes of the page"
            raise refused("--clusters", args.clusters, allowed)

    def forward(self, src_tokens: Tensor, page: dict[str, Tensor]) -> tuple[Tensor, dict]:
        """The logits of n-grams, [B, 5, W], see :class:`PhraseHead`, of what
        :func:`~openkp.pages.batch_of_pages` makes; and the layers' ``reports``: none."""
        padding = src_tokens.eq(self.encoder.dictionary.pad()).unsqueeze(-1)
        states = self.encoded(src_tokens, page).masked_fill(padding, 0.0)
        logits = self.head(states, page["words"], page["num_words"])
        return at_least_float32(logits), {"reports": {"encoder": []}}

    def encoded(self, src_tokens: Tensor, page: dict[str, Tensor]) -> Tensor:
        """The final states of tokens, [B, N, D]; see `forward`."""
        if self.args.fixed_blocks:
            return self.encoder(src_tokens).of_long
        number = torch.arange(page["nodes"].size(1), device=src_tokens.device)
        hidden = {"long_padding": src_tokens.eq(self.encoder.dictionary.pad())}
        hidden["global_padding"] = number >= page["num_nodes"].unsqueeze(1)
        structure = Structure(page["nodes"], src_tokens.size(1), **hidden)
        of_nodes = of_tokens = None
        if self.visual is not None:
            of_nodes = self.visual(page["visual"])
            of_tokens = of_nodes.take_along_dim(page["token_nodes"].unsqueeze(-1), 1)
        more = {"types": of_tokens, "global_types": of_nodes}
        return self.encoder(src_tokens, structure, **more).of_long
