"""``--arch etc_masked_lm``: masked words, by ETC's encoder (Ainslie et al. 2020).

The task ``etc_masked_lm`` trains it on documents with their sentences as parts, and to recognise
hidden parts; ``clusterformer_masked_lm`` trains it on plain text in fixed blocks.
"""

import torch
from torch import Tensor, nn

from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM

from .encoder import ETCOptions, Streams
from .global_local import Structure
from .lift import ETCModel, register_etc
from .masked_parts import NO_EXAMPLE


@register_etc("etc_masked_lm", ETCOptions)
class ETCMaskedLM(ETCModel, ClusterformerMaskedLM):
    """ETC's encoder, and RoBERTa's head on the long stream, which shares the words' embeddings.

    Where the task hides parts, a linear map of the global token of a hidden part in its context,
    and another of that part's global token where the part stands alone, are to agree: contrastive
    predictive coding (section 3.3; the paper leaves the maps open).
    """

    def __init__(self, args, task):
        super().__init__(args, task)
        self.contrast = None
        if getattr(task, "hides_parts", False):
            width = args.encoder_embed_dim
            maps = {name: nn.Linear(width, width) for name in ("context", "alone")}
            self.contrast = nn.ModuleDict(maps)

    @classmethod
    def check(cls, args, task) -> None:
        parts = getattr(getattr(task, "cfg", None), "parts", "none")
        if args.clusters and parts != "none":
            given = f"{args.clusters}, and --parts {parts}"
            raise refused("--clusters", given, "--parts none, or --clusters 0")

    def upgrade_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """As fairseq's; the two maps are left out where the task hides no parts."""
        super().upgrade_state_dict(state_dict)
        for name in [*state_dict] if self.contrast is None else ():
            if name.startswith("contrast."):
                del state_dict[name]

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        src_id: Tensor | None = None,
        masked_tokens: Tensor | None = None,
        parts: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, dict]:
        """As its parent's. With ``parts`` of `MaskedParts` (None: fixed blocks), also "contrast":
        what the S hidden parts should be like, and what they are, both [S, D]."""
        if parts is None:
            return super().forward(src_tokens, masked_tokens=masked_tokens)
        streams, extra = self.read(src_tokens, parts), {"reports": {"encoder": []}}
        if self.contrast is not None:
            expected, alone = streams.of_global[parts["hidden"]], parts["alone"]
            actual, (rows, places) = expected, alone["at"].unbind(-1)
            if len(rows):
                actual = self.read(alone["src_tokens"], alone).of_global[rows, places]
            extra["contrast"] = self.contrast["context"](expected), self.contrast["alone"](actual)
        return self.lm_head(streams.of_long, masked_tokens), extra

    def read(self, src_tokens: Tensor, parts: dict[str, Tensor]) -> Streams:
        """The encoder's states of documents with their parts; see `forward`."""
        words, hidden = self.encoder.dictionary, parts["hidden"]
        structure = Structure(
            parts["spans"],
            src_tokens.size(1),
            long_padding=src_tokens.eq(words.pad()),
            global_padding=parts["global_examples"].eq(NO_EXAMPLE),
            long_examples=parts["long_examples"],
            global_examples=parts["global_examples"],
        )
        # words of the global tokens of parts that are hidden, and seen
        mask, begin = (src_tokens.new_tensor(words.index(word)) for word in ("<mask>", "<s>"))
        return self.encoder(src_tokens, structure, torch.where(hidden, mask, begin))

    def encoded(self, src_tokens: Tensor, segments: None = None) -> tuple[Tensor, list[Report]]:
        """As its parent's; no layer clusters."""
        return self.encoder(src_tokens).of_long, []
