"""``--task etc_masked_lm``: ETC's pre-training (Ainslie et al. 2020) on documents of sentences."""

import logging
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_clusterformer.data.stored import load_dictionary, shard_of
from fairseq_clusterformer.data.subwords import texts_of
from fairseq_clusterformer.etc.masked_lm import ETCMaskedLM
from fairseq_clusterformer.etc.masked_lm_loss import ETCMaskedLMLoss
from fairseq_clusterformer.etc.masked_parts import PARTS, MaskedParts
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.tasks.own_models import OwnModels

logger = logging.getLogger(__name__)


@dataclass
class ETCMaskedLMTaskConfig(FairseqDataclass):
    """Options; the defaults are the paper's."""

    data: str = option(MISSING, "folder that `clusterformer prepare lm text --sentences` made")
    tokens_per_sample: int = option(
        4096, "tokens of a row: of a piece of a long document, or of short ones", at_least=1
    )
    max_parts: int = option(
        256, "most global tokens of a row; of --parts none, most documents", at_least=1
    )
    parts: str = option(
        "sentences",
        "what global tokens stand for: sentences, blocks of equal length, or none",
        choices=PARTS,
    )
    min_sentences: int = option(
        1, "of a document, else it is left out; the paper has 7", at_least=1
    )
    part_tokens: int = option(97, "tokens of a block", at_least=1)
    hide_parts: float = option(
        0.1, "share of the parts of which all is hidden; 0: none", at_least=0, at_most=1
    )
    mask_prob: float = option(0.15, "share of the words to guess", at_least=0, at_most=1)
    leave_unmasked_prob: float = option(
        0.1, "share of the guessed tokens that stay", at_least=0, at_most=1
    )
    random_token_prob: float = option(
        0.1, "share of the guessed tokens that become another", at_least=0, at_most=1
    )
    # else fairseq's workers live on, and never hear that an epoch has other words to guess
    persistent_workers: bool = option(False, "keep data workers, which then guess the same words")
    seed: int = II("common.seed")


@register_task("etc_masked_lm", dataclass=ETCMaskedLMTaskConfig)
class ETCMaskedLMTask(OwnModels):
    """Words that are masked are guessed, and hidden sentences are recognised."""

    name, model, criterion = "etc_masked_lm", ETCMaskedLM, ETCMaskedLMLoss

    def __init__(self, cfg: ETCMaskedLMTaskConfig, dictionary: Dictionary):
        super().__init__(cfg, dictionary)
        self.hides_parts = cfg.hide_parts > 0 and cfg.parts != "none"

    @classmethod
    def setup_task(cls, cfg: ETCMaskedLMTaskConfig, **kwargs):
        """Read the dictionary; raises ValueError for an option that is not allowed."""
        if cfg.leave_unmasked_prob + cfg.random_token_prob > 1:
            raise ValueError(
                f"--random-token-prob is {cfg.random_token_prob}, and --leave-unmasked-prob "
                f"{cfg.leave_unmasked_prob}; allowed: a sum of 1 or less"
            )
        dictionary = load_dictionary(cfg.data, "clusterformer prepare lm text --sentences")
        dictionary.add_symbol("<mask>")
        return cls(cfg, dictionary)

    def load_dataset(
        self, split: str, combine: bool = False, epoch: int = 1, **kwargs
    ) -> MaskedParts:
        """Load "train", "valid" or "test", and log what is left out.

        Raises:
            FileNotFoundError, ValueError: no such split, or none with a word.
        """
        path = shard_of(self.cfg.data, epoch) / split
        lines = data_utils.load_indexed_dataset(str(path), self.dictionary, combine=combine)
        if lines is None:
            raise FileNotFoundError(f"{path}.idx: no such file; allowed: a split of DATA")
        if not (lines.sizes == 1).any():
            raise ValueError(
                f"{path} has no empty line, which ends a document; allowed: a folder that "
                "`clusterformer prepare lm text --sentences` made"
            )
        dataset = self._in_rows(
            lines,
            most=self.cfg.tokens_per_sample,
            most_parts=self.cfg.max_parts,
            least_lines=self.cfg.min_sentences,
            hidden_parts=self.cfg.hide_parts,
            guessed=self.cfg.mask_prob,
        )
        if not len(dataset):
            least = f"in a document of --min-sentences {self.cfg.min_sentences} or more"
            raise ValueError(f"{path} has no word {least}; allowed: one or more")
        logger.info(
            f"{split}: {len(dataset.pieces)} pieces of documents in {len(dataset)} rows of "
            f"{dataset.sizes.mean():.0f} tokens"
        )
        if dataset.left_out:
            logger.info(f"{split}: {dataset.left_out} lines of short documents are left out")
        if dataset.lost:
            logger.info(f"{split}: {dataset.lost} tokens at the ends of long lines are left out")
        self.datasets[split] = dataset
        return dataset

    def _in_rows(self, lines, **options) -> MaskedParts:
        return MaskedParts(
            lines,
            self.dictionary,
            self._begins_word,
            parts=self.cfg.parts,
            block=self.cfg.part_tokens,
            kept=self.cfg.leave_unmasked_prob,
            replaced=self.cfg.random_token_prob,
            seed=self.cfg.seed,
            **options,
        )

    @cached_property
    def _begins_word(self) -> np.ndarray:
        """Whether each symbol begins a word; pieces of a letter, which have no text, do not."""
        texts = texts_of(shard_of(self.cfg.data), self.dictionary)
        begins = np.array([text[:1].isspace() for text in texts])
        begins[: self.dictionary.nspecial] = True
        return begins

    def document(self, sentences: list[Tensor]) -> dict:
        """What the model reads of one document, of any length, with nothing hidden; of the words
        of each sentence, int64 [n]."""
        lines = Lines(torch.cat([x, x.new_tensor([self.dictionary.eos()])]) for x in sentences)
        most = sum(map(len, lines))
        rows = self._in_rows(lines, most=most, most_parts=most, hidden_parts=0, guessed=0)
        return rows.collater([rows[0]])["net_input"]

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary

    def max_positions(self) -> int:
        """Tokens of a row."""
        return self.cfg.tokens_per_sample


class Lines(list):
    """Items of words and ``</s>``, with their sizes as fairseq's data sets have them."""

    @property
    def sizes(self) -> np.ndarray:
        return np.array([len(item) for item in self])
