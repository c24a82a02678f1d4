"""ETC's pre-training (Ainslie et al. 2020) on documents with parts: model, task and criterion
``etc_masked_lm``, and ``--optimizer clusterformer_lamb``. The task ``clusterformer_masked_lm``
trains the model on text in fixed blocks."""

import copy
import logging
import math
from ast import literal_eval
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.data import ListDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.criterions.clustering_losses import SummedLogs, weight
from fairseq_clusterformer.data.stored import binarized, shard_of
from fairseq_clusterformer.data.subwords import texts_of
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.options import fraction, option
from fairseq_clusterformer.precision import at_least_float32
from fairseq_clusterformer.tasks.own_models import OwnModels

from .encoder import ETCModel, ETCOptions, Streams, register_etc
from .global_local import Structure
from .masked_parts import NO_EXAMPLE, PARTS, MaskedParts

logger = logging.getLogger(__name__)


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


@dataclass
class ETCMaskedLMLossConfig(FairseqDataclass):
    """The paper's weights (section 4.1)."""

    words_weight: float = weight(0.8, "weight of the words' loss")
    parts_weight: float = weight(0.2, "weight of the hidden parts' loss")


@register_criterion("etc_masked_lm", dataclass=ETCMaskedLMLossConfig)
class ETCMaskedLMLoss(SummedLogs, FairseqCriterion):
    """Cross-entropy of guessed words, and InfoNCE (van den Oord et al. 2018) of hidden parts: each
    is to be recognised among those of the batch, by the dot product of what its context expects
    and what it is, over sqrt(D). Both are means, so the weights mean the same in any batch."""

    def __init__(self, task, words_weight: float, parts_weight: float):
        super().__init__(task)
        self.words_weight, self.parts_weight = words_weight, parts_weight

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        masked = sample["target"].ne(self.padding_idx)
        logits, extra = model(**sample["net_input"], masked_tokens=masked)
        target, size = sample["target"][masked], max(int(masked.sum()), 1)
        words = cross_entropy(at_least_float32(logits), target, reduction="sum")
        log = {"loss": words.detach(), "sample_size": size}
        log |= {name: sample[name] for name in ("ntokens", "nsentences")}
        total = self.words_weight * words
        if "contrast" in extra:
            expected, actual = map(at_least_float32, extra["contrast"])
            alike = expected @ actual.T * expected.size(-1) ** -0.5
            own = torch.arange(len(alike), device=alike.device)
            parts = cross_entropy(alike, own, reduction="sum")
            total = total + self.parts_weight * size * parts / max(len(own), 1)
            # a tensor in each worker, also of no part: fairseq adds up numbers apart
            right = (alike.argmax(-1) == own).sum() if len(own) else own.sum()
            log |= {"parts_loss": parts.detach(), "parts_right": right, "parts": len(own)}
        return total, size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]) -> None:
        """Log ``loss`` in bits a guessed word, ``ppl``, and of hidden parts ``parts_loss`` in bits
        and the share that are recognised, ``parts_accuracy``."""
        total = SummedLogs.totals(logging_outputs)
        size, parts = total["sample_size"], total["parts"]
        metrics.log_scalar("loss", total["loss"] / size / math.log(2), size, round=3)
        metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].avg)
        if parts:
            loss = total["parts_loss"] / parts / math.log(2)
            metrics.log_scalar("parts_loss", loss, parts, round=3)
            metrics.log_scalar("parts_accuracy", total["parts_right"] / parts, parts, round=3)


@dataclass
class ETCMaskedLMTaskConfig(FairseqDataclass):
    """Options; the defaults are the paper's."""

    data: str = option(MISSING, "folder that `clusterformer prepare lm text --sentences` made")
    tokens_per_sample: int = option(4096, "tokens of a row, of one document or more", at_least=1)
    max_parts: int = option(256, "most parts of a row; of --parts none, documents", at_least=1)
    parts: str = option(
        "sentences", "what has global tokens: sentences, equal blocks, or none", choices=PARTS
    )
    min_sentences: int = option(1, "shorter documents are left out; the paper has 7", at_least=1)
    part_tokens: int = option(97, "tokens of a block", at_least=1)
    hide_parts: float = fraction(0.1, "share of the parts to hide whole")
    mask_prob: float = fraction(0.15, "share of the words to guess")
    leave_unmasked_prob: float = fraction(0.1, "share of the guessed tokens that stay")
    random_token_prob: float = fraction(0.1, "share of the guessed tokens that become another")
    # else fairseq's workers live on, and never hear that an epoch has other words to guess
    persistent_workers: bool = option(False, "keep data workers, which then guess the same words")
    seed: int = II("common.seed")


@register_task("etc_masked_lm", dataclass=ETCMaskedLMTaskConfig)
class ETCMaskedLMTask(OwnModels):
    """Words that are masked are guessed, and hidden sentences are recognised."""

    name, model, criterion = "etc_masked_lm", ETCMaskedLM, ETCMaskedLMLoss
    made_by = "clusterformer prepare lm text --sentences"

    target_dictionary = OwnModels.source_dictionary

    @classmethod
    def setup_task(cls, cfg: ETCMaskedLMTaskConfig, **kwargs):
        """Read the dictionary; raises ValueError for an option that is not allowed."""
        if cfg.leave_unmasked_prob + cfg.random_token_prob > 1:
            given = f"{cfg.random_token_prob}, and --leave-unmasked-prob {cfg.leave_unmasked_prob}"
            raise refused("--random-token-prob", given, "a sum of 1 or less")
        task = super().setup_task(cfg, **kwargs)
        task.dictionary.add_symbol("<mask>")
        task.hides_parts = cfg.hide_parts > 0 and cfg.parts != "none"
        return task

    def load_dataset(self, split: str, combine=False, epoch=1, **kwargs) -> MaskedParts:
        """Load "train", "valid" or "test", and log what is left out; raises FileNotFoundError or
        ValueError: no such split, or none with a word."""
        cfg, path = self.cfg, shard_of(self.cfg.data, epoch) / split
        lines = binarized(path, self.dictionary, combine)
        if not (lines.sizes == 1).any():
            problem = "has no empty line, which ends a document"
            raise ValueError(f"{path} {problem}; allowed: a folder that `{self.made_by}` made")
        found = MaskedParts(lines, self.dictionary, self._begins_word, cfg)
        if not len(found):
            least = f"in a document of --min-sentences {cfg.min_sentences} or more"
            raise ValueError(f"{path} has no word {least}; allowed: one or more")
        logger.info(
            f"{split}: {len(found.pieces)} pieces of documents in {len(found)} rows of "
            f"{found.sizes.mean():.0f} tokens; left out: {found.left_out} lines of short "
            f"documents, {found.lost} tokens at the ends of long lines"
        )
        self.datasets[split] = found
        return found

    @cached_property
    def _begins_word(self) -> np.ndarray:
        """Whether each symbol begins a word; pieces of a letter, which have no text, do not."""
        texts = texts_of(shard_of(self.cfg.data), self.dictionary)
        begins = np.array([text[:1].isspace() for text in texts])
        begins[: self.dictionary.nspecial] = True
        return begins

    def document(self, sentences: list[Tensor]) -> dict:
        """What the model reads of a document of sentences, int64 [n] each, with nothing hidden."""
        lines = [pad(sentence, (0, 1), value=self.dictionary.eos()) for sentence in sentences]
        cfg, most = copy.deepcopy(self.cfg), sum(map(len, lines))
        cfg.tokens_per_sample = cfg.max_parts = most
        cfg.min_sentences, cfg.hide_parts, cfg.mask_prob = 1, 0.0, 0.0
        lines = ListDataset(lines, [*map(len, lines)])
        rows = MaskedParts(lines, self.dictionary, self._begins_word, cfg)
        return rows.collater([rows[0]])["net_input"]

    def max_positions(self) -> int:
        return self.cfg.tokens_per_sample


class Lamb(torch.optim.AdamW):
    """LAMB (You et al. 2020, algorithm 2): AdamW's update of each tensor x, scaled to the norm of
    x times the learning rate; not scaled where one of both norms is 0."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters that have a gradient."""
        before = [[x.clone() for x in group["params"]] for group in self.param_groups]
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = 1.0
        super().step()
        for group, olds, group["lr"] in zip(self.param_groups, before, rates, strict=True):
            for x, old in zip(group["params"], olds, strict=True):
                update = old - x
                norm, of_update = old.norm(), update.norm()
                trust = torch.where((norm > 0) & (of_update > 0), norm / of_update, 1.0)
                x.copy_(old - group["lr"] * trust * update)


@dataclass
class LambConfig(FairseqDataclass):
    """Options of LAMB."""

    lamb_betas: str = option("(0.9, 0.999)", "of the means of gradients and of their squares")
    lamb_eps: float = option(1e-6, "added to the root of the mean square", at_least=0)
    weight_decay: float = option(0.0, "lambda, times the weights", at_least=0)
    lr: list[float] = II("optimization.lr")


@register_optimizer("clusterformer_lamb", dataclass=LambConfig)
class FairseqLamb(FairseqOptimizer):
    """:class:`Lamb` in fairseq's registry, whose own ``lamb`` needs apex and a GPU."""

    def __init__(self, cfg: LambConfig, params: Any):
        super().__init__(cfg)
        self._optimizer = Lamb(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """What overrides the options in a checkpoint."""
        rate, decay = self.cfg.lr, self.cfg.weight_decay
        how = {"lr": rate[0] if isinstance(rate, Collection) else rate, "weight_decay": decay}
        return how | {"betas": literal_eval(self.cfg.lamb_betas), "eps": self.cfg.lamb_eps}
