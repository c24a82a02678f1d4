"""Label texts and pairs of texts with a trained classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from fairseq import utils
from fairseq.data import ListDataset
from torch import Tensor

from fairseq_clusterformer.corpora.classification import RECORD, split_words
from fairseq_clusterformer.data.sentences import SentenceDataset
from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import UserError, bad_option, read_json

from ..checkpoints.load import Loaded
from .base import Pretrained, check_numbers

#: a text, or the two of a pair
Text = str | tuple[str, str]


@dataclass(frozen=True)
class Classification:
    """What a classifier says about a text or a pair."""

    label: str  # the most likely one
    probability: float  # of this label, from 0 to 1
    probabilities: dict[str, float]  # of each label, the most likely one first
    is_cut: bool  # the end of a text was left out, because the model reads no more


class Classifier(Pretrained):
    """Labels texts, or pairs of texts if it `is_pair`; `labels` are in the order of the model's
    outputs. Raises UserError: if the data folder does not say how its texts became words."""

    kind = "classifier"
    abilities = ("classify", "encode")

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        if not loaded.task.classes:
            problem = "its labels are numbers (--regression-target)"
            raise bad_option("--checkpoint", loaded.folder, "a classifier of labels", problem)
        self.labels: list[str] = loaded.task.classes
        self.is_pair: bool = loaded.task.is_pair
        folder = loaded.folder
        try:
            model = Subwords(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else None
            match read_json(folder / RECORD):
                case {"tokenised": bool(kind), "settings": {"max_length": int() | None as most}}:
                    how = {"tokenised": kind, "max_length": most, "model": model}
                case _:
                    raise ValueError("it does not say how texts became words")
        except (OSError, ValueError) as error:
            allowed = "a folder that `clusterformer prepare classification` of this version made"
            raise bad_option("--data", folder, allowed, f"{RECORD}: {error!r}") from None
        self._words = partial(split_words, **how)

    @torch.no_grad()
    def classify(
        self, texts: Text | Sequence[Text], *, batch_size: int = 32
    ) -> Classification | list[Classification]:
        """Label texts (or pairs, each a tuple), or one, `batch_size` at once. Raises UserError: a
        pair for a model of texts, or the other way round; a batch of nothing."""
        if isinstance(texts, str | tuple):
            return self.classify([texts])[0]
        check_numbers(batch_size=batch_size)
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        task, result = self.loaded.task, []
        for row in rows:
            if len(row) != 1 + self.is_pair:
                wanted = "two texts, as it was trained on pairs" if self.is_pair else "one text"
                raise UserError(f"the model gets {len(row)} texts, {row!r}; allowed: {wanted}")
        for first in range(0, len(rows), batch_size):
            some = rows[first : first + batch_size]
            words = [[self._words(text) for text in row] for row in some]
            sides = []
            for side in zip(*words, strict=True):
                ids = [torch.tensor([*map(task.dictionary.index, of)]).long() for of, _ in side]
                sides.append(ListDataset(ids, np.array([*map(len, ids)])))
            how = {"pair_form": task.cfg.pair_form, "max_positions": task.cfg.max_positions}
            none = torch.zeros(len(words), dtype=torch.int64)
            dataset = SentenceDataset(sides, none, task.dictionary, **how)
            batch = dataset.collater([dataset[number] for number in range(len(dataset))])
            inputs = utils.apply_to_sample(lambda x: x.to(self.device), batch["net_input"])
            output = self.model(**inputs)
            probabilities = self.model.get_normalized_probs(output, log_probs=False).cpu()
            order = probabilities.argsort(dim=1, descending=True, stable=True)
            cut = dataset.full_sizes > dataset.sizes
            for of, row, places, is_cut in zip(words, probabilities, order, cut, strict=True):
                found = {self.labels[place]: float(row[place]) for place in places.tolist()}
                label = next(iter(found))
                is_cut = bool(is_cut) or any(was_cut for _, was_cut in of)
                result.append(Classification(label, found[label], found, is_cut))
        return result

    def _states(self, text: Text) -> Tensor:
        """Of a pair: the tokens of both texts, one after the other."""
        found = []
        with self.model.encoder.register_forward_hook(
            lambda module, args, out: found.append(out["encoder_out"][0][:, 0])
        ):
            self.classify(text)
        return torch.cat(found)
