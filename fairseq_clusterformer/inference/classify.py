"""Label texts and pairs of texts with a trained classifier."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fairseq import utils
from fairseq.data import ListDataset

from fairseq_clusterformer.corpora.classification.build import RECORD
from fairseq_clusterformer.corpora.classification.tokenise import split_words
from fairseq_clusterformer.data.sentences import SentenceDataset
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.inference.load import Loaded

TASK = "clusterformer_sentence"


@dataclass(frozen=True)
class Classification:
    """What a classifier says about a text or a pair.

    Attributes:
        label: the most likely one.
        probability: of this label, from 0 to 1.
        probabilities: of each label, the most likely one first.
        is_cut: whether the end of a text was left out, because the model reads no more.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    is_cut: bool


class TextClassifier:
    """A trained classifier that reads plain text.

    Args:
        loaded: a checkpoint of the task ``clusterformer_sentence``, or a bundle.
        cpu: do not use an accelerator.

    Attributes:
        labels: in the order of the model's outputs.
        is_pair: whether it labels pairs of texts.

    Raises:
        UserError: if the data folder does not say how its texts became words.
    """

    def __init__(self, loaded: Loaded, *, cpu: bool = False) -> None:
        self._task = loaded.task
        self.labels: list[str] = loaded.task.classes
        self.is_pair: bool = loaded.task.is_pair
        path = loaded.folder / RECORD
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            self._tokenised = bool(record["tokenised"])
            self._max_length = record["settings"]["max_length"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise bad_option(
                "--data",
                loaded.folder,
                "a folder that `clusterformer prepare classification` of this version has made",
                f"{RECORD}: {error!r}",
            ) from None
        self._cuda = torch.cuda.is_available() and not cpu
        self._model = loaded.model.cuda() if self._cuda else loaded.model

    def classify(
        self, texts: Sequence[str | tuple[str, str]], *, batch_size: int = 32
    ) -> list[Classification]:
        """Label texts, or pairs of texts if the model was trained on pairs.

        Args:
            texts: each a string, or a tuple of two strings.
            batch_size: how many the model reads at once.

        Raises:
            UserError: a pair for a model of texts, or the other way round.
        """
        result = []
        for first in range(0, len(texts), batch_size):
            result += self._classify(texts[first : first + batch_size])
        return result

    @torch.no_grad()
    def _classify(self, texts: Sequence[str | tuple[str, str]]) -> Iterator[Classification]:
        rows = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        for row in rows:
            if len(row) != 1 + self.is_pair:
                wanted = "two texts, as it was trained on pairs" if self.is_pair else "one text"
                raise UserError(f"the model gets {len(row)} texts, {row!r}; allowed: {wanted}")
        words = [
            [split_words(t, tokenised=self._tokenised, max_length=self._max_length) for t in row]
            for row in rows
        ]
        dictionary = self._task.dictionary
        sides = [
            [
                torch.tensor([dictionary.index(word) for word in row[side][0]], dtype=torch.int64)
                for row in words
            ]
            for side in range(1 + self.is_pair)
        ]
        dataset = SentenceDataset(
            [ListDataset(side, np.array([len(ids) for ids in side])) for side in sides],
            torch.zeros(len(rows), dtype=torch.int64),
            dictionary,
            pair_form=self._task.cfg.pair_form,
            max_positions=self._task.cfg.max_positions,
        )
        batch = dataset.collater([dataset[index] for index in range(len(dataset))])
        inputs = batch["net_input"]
        output = self._model(**(utils.move_to_cuda(inputs) if self._cuda else inputs))
        probabilities = self._model.get_normalized_probs(output, log_probs=False).cpu()
        order = probabilities.argsort(dim=1, descending=True, stable=True)
        for index, (row, places) in enumerate(zip(probabilities, order, strict=True)):
            found = {self.labels[place]: float(row[place]) for place in places.tolist()}
            label = next(iter(found))
            is_cut = any(cut for _, cut in words[index]) or bool(
                dataset.full_sizes[index] > dataset.sizes[index]
            )
            yield Classification(label, found[label], found, is_cut)
