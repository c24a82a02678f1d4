"""``--task etc_keyphrases``: find the keyphrases of web pages (Ainslie et al. 2020: OpenKP)."""

import logging
from dataclasses import dataclass

from fairseq.tasks import register_task

from fairseq_clusterformer.data.stored import load_dictionary, shard_of
from fairseq_clusterformer.etc.keyphrases import ETCKeyphrasesLoss
from fairseq_clusterformer.etc.keyphrases_model import ETCKeyphrases
from fairseq_clusterformer.etc.page_dataset import PageDataset
from fairseq_clusterformer.etc.pages import PageData
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.tasks.own_models import DataOptions, OwnModels

logger = logging.getLogger(__name__)


@dataclass
class ETCKeyphrasesTaskConfig(DataOptions):
    """Options; the defaults are the paper's."""

    max_positions: int = option(
        4096, "most tokens of a page, which is cut between words", at_least=1
    )
    max_nodes: int = option(512, "most nodes of a page, which is cut behind them", at_least=1)


@register_task("etc_keyphrases", dataclass=ETCKeyphrasesTaskConfig)
class ETCKeyphrasesTask(OwnModels):
    """Pages, and the phrases in them that say what they are about."""

    name, model, criterion = "etc_keyphrases", ETCKeyphrases, ETCKeyphrasesLoss

    @classmethod
    def setup_task(cls, cfg: ETCKeyphrasesTaskConfig, **kwargs):
        """Read the dictionary."""
        dictionary = load_dictionary(cfg.data, "clusterformer prepare keyphrases")
        logger.info(f"{len(dictionary)} symbols")
        return cls(cfg, dictionary)

    def load_dataset(
        self, split: str, combine: bool = False, epoch: int = 1, **kwargs
    ) -> PageDataset:
        """Load "train", "valid" or "test", and log what is cut. Pages that lose all their
        keyphrases are left out of training, as in the paper.

        Raises:
            FileNotFoundError, ValueError: files that are missing or do not fit together, or no
                page to train on.
        """
        in_training = split == self.cfg.train_subset
        data = PageData(shard_of(self.cfg.data, epoch), split)
        dataset = PageDataset(
            data,
            self.dictionary,
            split=split,
            max_positions=self.cfg.max_positions,
            max_nodes=self.cfg.max_nodes,
            only_with_phrases=in_training,
            shuffle=not self.cfg.no_shuffle,
        )
        options = f"--max-positions {self.cfg.max_positions}, --max-nodes {self.cfg.max_nodes}"
        if dataset.cut:
            logger.info(f"{split}: {dataset.cut} of {len(data)} pages are cut ({options})")
        if lost := len(data) - len(dataset):
            logger.info(f"{split}: {lost} pages are left out, which have no keyphrase (left)")
        if not len(dataset):
            raise ValueError(
                f"{split} of {self.cfg.data}: no page has a keyphrase left ({options}); allowed: "
                "one or more"
            )
        self.datasets[split] = dataset
        return dataset
