"""``--task clusterformer_qa``: answer questions from long documents."""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task

from fairseq_clusterformer.criterions.clusterformer_qa import QACriterion
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.data.questions import QuestionDataset, WindowData, WindowedQuestions
from fairseq_clusterformer.data.stored import shard_of
from fairseq_clusterformer.data.subwords import texts_of
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.options import flag, fraction, option
from fairseq_clusterformer.models.reader import ReaderModel

from .own_models import DataOptions, OwnModels

logger = logging.getLogger(__name__)


@dataclass
class ClusterformerQAConfig(DataOptions):
    """Options; the lengths are those of CF20 section 4.2."""

    max_positions: int = option(5000, "most tokens of a document in training; 0: all", at_least=0)
    max_positions_inference: int = option(10000, "the same outside training; 0: all", at_least=0)
    document_stride: int = option(0, "stride of windows in longer documents; 0: cut", at_least=0)
    null_windows: float = fraction(1.0, "share of the windows without an answer to train on")
    max_question_positions: int = option(64, "most question tokens, with <s> and </s>", at_least=3)
    max_answer_length: int = option(30, "most words of a predicted short answer", at_least=1)
    no_answer_bias: float = option(0.0, 'added to the score of "no answer", outside training')
    max_global_positions: int = option(1024, "etc_reader: most global tokens; 0: all", at_least=0)
    supporting_threshold: float = fraction(
        0.4, "etc_reader: least probability of a supporting sentence"
    )


@register_task("clusterformer_qa", dataclass=ClusterformerQAConfig)
class ClusterformerQATask(OwnModels):
    """Questions with a document each, and their answers: spans, paragraphs, yes or no, or none."""

    name, model, criterion = "clusterformer_qa", ReaderModel, QACriterion
    made_by = "clusterformer prepare qa"
    #: what the model reads of a document's structure, once there is one
    structure: Any = None

    @classmethod
    def setup_task(cls, cfg: ClusterformerQAConfig, **kwargs):
        """Read the dictionary. Raises FileNotFoundError: no dictionary; ValueError: a document of
        one token, or windows with gaps."""
        for name in ("max_positions", "max_positions_inference"):
            if (most := getattr(cfg, name)) == 1:
                raise refused(flag(name), 1, "2 or more, or 0 for documents of any length")
            if cfg.document_stride >= (most or math.inf):
                given = f"{cfg.document_stride}, and {flag(name)} {most}"
                raise refused("--document-stride", given, "a stride below the tokens of a window")
        return super().setup_task(cfg, **kwargs)

    def load_dataset(self, split: str, combine=False, epoch=1, **kwargs) -> QuestionDataset:
        """Load "train", "valid" or "test", and log what is cut. Raises FileNotFoundError: a file
        that is missing; ValueError: files that do not fit together."""
        in_training = split == self.cfg.train_subset
        name = "max_positions" if in_training else "max_positions_inference"
        data = QAData(shard_of(self.cfg.data, epoch), split)
        data.of_symbols(len(self.source_dictionary))
        longest = int(data.sizes.max())
        most = min(getattr(self.cfg, name) or longest, longest)
        if self.cfg.document_stride:
            data = self._windows(data, most, split, in_training)
        dataset = QuestionDataset(
            data,
            self.dictionary,
            split=split,
            max_positions=most,
            max_question_positions=self.cfg.max_question_positions,
            shuffle=not self.cfg.no_shuffle,
            structure=self.structure,
        )
        if self.structure is not None:
            known, short, lost = dataset.check_structure()
            dataset.cuts |= {"documents with parts without a global token": short}
            dataset.cuts |= {"long answers without a global token": lost}
            if in_training and self.structure.supporting and not known:
                problem = f"{split} of {self.cfg.data} has none within --max-positions"
                allowed = "data with supporting sentences"
                raise refused("--supporting-facts", "given", allowed, problem)
        documents, lost, questions = dataset.cut()
        lost += data.lost if data is not data.whole else 0
        dataset.cuts |= {"documents cut": documents, "answers lost by that": lost}
        dataset.cuts |= {"questions cut": questions}
        if any(dataset.cuts.values()):
            told = ", ".join(f"{number} {what}" for what, number in dataset.cuts.items())
            told += f" ({flag(name)}, --max-question-positions, --max-global-positions)"
            logger.info(f"{split}, {len(data.whole)} questions: {told}")
        if data is not data.whole and not in_training:
            dataset = WindowedQuestions(dataset)
        self.datasets[split] = dataset
        return dataset

    def _windows(self, data: QAData, size: int, split: str, in_training: bool) -> WindowData:
        """The windows of a split; logs how many there are, and what is left out."""
        stride, share = self.cfg.document_stride, self.cfg.null_windows if in_training else 1.0
        if self.structure is not None and self.structure.supporting:
            raise refused("--document-stride", stride, "0 with --supporting-facts")
        longer = int((data.sizes > size).sum())
        found = WindowData(data, size, min(stride, size - 1), share=share)
        logger.info(
            f"{split}: {longer} of {len(data)} documents are read in windows of {size} tokens "
            f"(--document-stride {stride}); {len(found)} windows, {found.dropped} without an "
            f"answer left out; no window holds an answer of {found.lost} questions"
        )
        return found

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """As `OwnModels` does; raises ValueError for a reader that has no room for questions."""
        model = super().build_model(cfg, from_checkpoint)
        model.check_questions(self.cfg.max_question_positions)
        if model.structure is not None:
            self.structure = replace(model.structure, most=self.cfg.max_global_positions)
        return model

    @cached_property
    def symbol_texts(self) -> list[str]:
        """What each symbol of the dictionary stands for; see :func:`texts_of`."""
        return texts_of(shard_of(self.cfg.data), self.dictionary)
