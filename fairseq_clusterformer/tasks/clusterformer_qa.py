"""``--task clusterformer_qa``: answer questions from long documents."""

import logging
from dataclasses import dataclass, field
from functools import cached_property

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING

from fairseq_clusterformer.criterions.clusterformer_qa import QACriterion
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.data.questions import DocumentStructure, QuestionDataset
from fairseq_clusterformer.data.stored import load_dictionary, shard_of
from fairseq_clusterformer.data.subwords import texts_of
from fairseq_clusterformer.models.reader import ReaderModel

from .own_models import OwnModels

logger = logging.getLogger(__name__)


@dataclass
class ClusterformerQAConfig(FairseqDataclass):
    """Options; the lengths are those of CF20 section 4.2."""

    data: str = field(
        default=MISSING, metadata={"help": "folder that `clusterformer prepare qa` made"}
    )
    max_positions: int = field(
        default=5000,
        metadata={"help": "most tokens of a document in training, which is cut; 0: no limit"},
    )
    max_positions_inference: int = field(
        default=10000,
        metadata={"help": "the same for validation and inference; 0: no limit"},
    )
    max_question_positions: int = field(
        default=64,
        metadata={"help": "most tokens of a question, with <s> and </s>"},
    )
    max_answer_length: int = field(
        default=30, metadata={"help": "most tokens of a predicted short answer"}
    )
    no_answer_bias: float = field(
        default=0.0,
        metadata={"help": 'added to the score of "no answer" in validation and inference'},
    )
    max_global_positions: int = field(
        default=1024,
        metadata={
            "help": "etc_reader: most global tokens of a question and its document; 0: no limit"
        },
    )
    supporting_threshold: float = field(
        default=0.4,
        metadata={
            "help": "etc_reader: a sentence supports the answer from this probability on, in "
            "validation and inference"
        },
    )
    no_shuffle: bool = field(
        default=False,
        metadata={"help": "keep the order of documents of one length, instead of a random one"},
    )
    train_subset: str = II("dataset.train_subset")


@register_task("clusterformer_qa", dataclass=ClusterformerQAConfig)
class ClusterformerQATask(OwnModels, FairseqTask):
    """Questions with a document each, and their answers: spans, paragraphs, yes or no, or none."""

    name, criterion = "clusterformer_qa", QACriterion
    model = ReaderModel

    def __init__(self, cfg: ClusterformerQAConfig, dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary
        #: what the model reads of a document's structure, once there is one
        self.structure: DocumentStructure | None = None

    @classmethod
    def setup_task(cls, cfg: ClusterformerQAConfig, **kwargs):
        """Read the dictionary.

        Raises:
            FileNotFoundError: no dictionary.
            ValueError: an option that is not allowed.
        """
        for name, least, allowed in (
            ("max_positions", 2, "2 or more, or 0 for documents of any length"),
            ("max_positions_inference", 2, "2 or more, or 0 for documents of any length"),
            ("max_question_positions", 3, "3 or more"),
            ("max_answer_length", 1, "1 or more"),
            ("max_global_positions", 1, "1 or more, or 0 for any number"),
        ):
            value = getattr(cfg, name)
            if value < least and not (value == 0 and "0 for" in allowed):
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is {value}; allowed: {allowed}")
        if not 0 <= cfg.supporting_threshold <= 1:
            raise ValueError(
                f"--supporting-threshold is {cfg.supporting_threshold}; allowed: 0 to 1"
            )
        dictionary = load_dictionary(cfg.data, "clusterformer prepare qa")
        logger.info(f"{len(dictionary)} symbols")
        return cls(cfg, dictionary)

    def load_dataset(
        self, split: str, combine: bool = False, epoch: int = 1, **kwargs
    ) -> QuestionDataset:
        """Load "train", "valid" or "test", and log what is cut.

        Raises:
            FileNotFoundError: a file that is missing.
            ValueError: files that do not fit together.
        """
        in_training = split == self.cfg.train_subset
        name = "max_positions" if in_training else "max_positions_inference"
        data = QAData(shard_of(self.cfg.data, epoch), split)
        longest = int(data.sizes.max())
        most = min(getattr(self.cfg, name) or longest, longest)
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
            self._check_structure(dataset, in_training)
        documents, lost, questions = dataset.cut()
        total = len(dataset)
        if documents:
            logger.info(
                f"{split}: {documents} of {total} documents are cut to {most} tokens "
                f"(--{name.replace('_', '-')}), where {lost} questions lose their answers"
            )
        if questions:
            logger.info(
                f"{split}: {questions} of {total} questions are cut to "
                f"{self.cfg.max_question_positions} tokens (--max-question-positions)"
            )
        self.datasets[split] = dataset
        return dataset

    def _check_structure(self, dataset: QuestionDataset, in_training: bool) -> None:
        """Refuse a structure that is not one, or too much of it.

        Raises:
            ValueError: naming the file and the question; or no supporting facts to learn.
        """
        split = dataset.split
        if not dataset.data.has_structure:
            logger.warning(
                f"{split}: {dataset.data.structure_file} is missing, so sentences have no global "
                "tokens; prepare the data again"
            )
        most = self.cfg.max_global_positions
        known = dataset.check_structure(most, linked=in_training)
        logger.info(f"{split}: supporting sentences of {known} of {len(dataset)} questions")
        if in_training and self.structure.supporting and not known:
            raise ValueError(
                f"--supporting-facts is given: {split} of {self.cfg.data} has none within "
                f"--max-positions {self.cfg.max_positions}; allowed: data "
                "with supporting sentences, such as hotpotqa, 2wiki and babi"
            )

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return a reader, with its initial weights unless a checkpoint is loaded.

        Raises:
            ValueError: another architecture, or one that has no room for questions.
        """
        model = super().build_model(cfg, from_checkpoint)
        model.check_questions(self.cfg.max_question_positions)
        self.structure = model.structure
        return model

    @cached_property
    def symbol_texts(self) -> list[str]:
        """What each symbol of the dictionary stands for; see :func:`texts_of`."""
        return texts_of(shard_of(self.cfg.data), self.dictionary)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> None:
        return None
