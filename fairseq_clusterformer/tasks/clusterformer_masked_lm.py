"""fairseq's ``masked_lm``, for models that may start from another model's weights, and for pairs
of texts, of which the second follows the first or not."""

import logging
from dataclasses import dataclass, fields

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_clusterformer.criterions.fairseq_losses import ClusterformerMaskedLMLoss
from fairseq_clusterformer.data.sentences import NextSentences
from fairseq_clusterformer.data.stored import binarized, shard_of
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.options import flag, option

from .own_models import InitialWeights

logger = logging.getLogger(__name__)

#: options of fairseq that pairs do not have
_OF_TEXTS = (
    *("sample_break_mode", "mask_whole_words", "freq_weighted_replacement", "skip_masking"),
    *("mask_multiple_length", "mask_stdev", "shorten_method", "shorten_data_split_list"),
    *("d2v2_multi", "include_target_tokens"),
)


@dataclass
class ClusterformerMaskedLMTaskConfig(MaskedLMConfig):
    """fairseq's options, and one more."""

    next_sentence: bool = option(
        False, "train on pairs of texts: guess whether the second follows the first, as BERT does"
    )


@register_task("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMTaskConfig)
class ClusterformerMaskedLMTask(InitialWeights, MaskedLMTask):
    """Words that are masked are guessed."""

    @classmethod
    def setup_task(cls, cfg: ClusterformerMaskedLMTaskConfig, **kwargs):
        """Read the dictionary; raises ValueError for an option that is not allowed."""
        if cfg.next_sentence:
            defaults = {item.name: item.default for item in fields(MaskedLMConfig)}
            for name in _OF_TEXTS:
                if (given := getattr(cfg, name)) != defaults[name]:
                    raise refused(flag(name), given, f"{defaults[name]}, or no --next-sentence")
            if not 0 < cfg.mask_prob < 1:
                raise refused("--mask-prob", cfg.mask_prob, "between 0 and 1")
            kept, other = cfg.leave_unmasked_prob, cfg.random_token_prob
            if min(kept, other) < 0 or kept + other > 1:
                given = f"{kept}, and --random-token-prob {other}"
                raise refused("--leave-unmasked-prob", given, "0 or more each, a sum of 1 or less")
            if (most := cfg.tokens_per_sample) < 5:
                raise refused("--tokens-per-sample", most, "5 or more with --next-sentence")
        task = super().setup_task(cfg, **kwargs)
        task.next_sentence = cfg.next_sentence  # whether samples are pairs of texts
        return task

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """As `InitialWeights`; raises ValueError for an architecture without the head of pairs."""
        model = super().build_model(cfg, from_checkpoint)
        if self.next_sentence and type(model) is not ClusterformerMaskedLM:  # ETC has parts
            name = getattr(cfg, "_name", None) or cfg.arch
            raise refused("--arch", name, "clusterformer_masked_lm_* with --next-sentence")
        return model

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the criterion; raises ValueError for one that does not train on pairs."""
        criterion = super().build_criterion(cfg, from_checkpoint)
        if self.next_sentence and not isinstance(criterion, ClusterformerMaskedLMLoss):
            raise refused("--criterion", cfg._name, "clusterformer_masked_lm with --next-sentence")
        return criterion

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Load "train", "valid" or "test"; raises FileNotFoundError or ValueError: no such split,
        or none of several documents."""
        if not self.next_sentence:
            super().load_dataset(split, epoch, combine, **kwargs)
            return
        path = shard_of(self.cfg.data, epoch) / split
        lines = binarized(path, self.dictionary, combine)
        try:
            dataset = NextSentences(
                lines,
                self.dictionary,
                max_positions=self.cfg.tokens_per_sample,
                guessed=self.cfg.mask_prob,
                kept=self.cfg.leave_unmasked_prob,
                replaced=self.cfg.random_token_prob,
                seed=self.cfg.seed,
            )
        except ValueError as error:
            made_by = "`clusterformer prepare lm text --sentences` writes them"
            raise ValueError(f"{path} has {error}; {made_by}") from None
        logger.info(f"{split}: {len(dataset)} pairs of texts")
        self.datasets[split] = dataset
