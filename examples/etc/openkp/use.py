"""What a trained model of keyphrases can do."""

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.corpora.question_answering.records import Unusable
from fairseq_clusterformer.data.subwords import load_prepared
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.use.base import Pretrained

from .pages import batch_of_pages, encode
from .records import VISUAL, PageRecord, page_record
from .task import best_keyphrases

#: a text, or a page as OpenKP's files have it
WebPage = str | Mapping[str, Any]


class KeyphraseModel(Pretrained):
    """Finds the phrases that say what a page is about; of the task ``etc_keyphrases``."""

    kind = "model of keyphrases"
    abilities = ("keyphrases", "encode")

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        model, index = load_prepared(loaded.folder), loaded.task.source_dictionary.index
        self._encode = {"model": model, "to_index": [index(symbol) for symbol in model.symbols]}

    @torch.no_grad()
    def keyphrases(self, page: WebPage, most: int = 5) -> list[tuple[str, float]]:
        """The best phrases of a page in lower case, ``most`` or fewer, each with its logit; what
        is longer than a page of the training is cut. Raises UserError: a page that is none, or a
        text for a model that reads what nodes look like.

        Args:
            page: with "text" and "VDOM", as in OpenKP's files; or a text, each line of which is a
                node, for a model that does not read what nodes look like.
        """
        record, batch = self._read(page)
        return best_keyphrases(self.model(**batch)[0][0].cpu(), record.words, most)

    @torch.no_grad()
    def _states(self, text: WebPage) -> Tensor:
        return self.model.encoded(**self._read(text)[1])[0]

    def _read(self, page: WebPage) -> tuple[PageRecord, dict[str, Any]]:
        """A page, and what the model reads of it."""
        shown = repr(page if isinstance(page, str) else str(page.get("text")))[:60]
        if isinstance(page, str):
            if self.model.visual is not None:
                allowed = "a page with VDOM, or a model trained with --no-visual-features"
                problem = "it does not say what its nodes look like"
                raise bad_option("page", shown, allowed, problem)
            lines = [" ".join(words) for words in map(str.split, page.splitlines()) if words]
            nodes, last = [], 0
            for line in lines:
                node = {"text": line, "feature": [0] * VISUAL, "start_idx": last}
                last += len(line.split(" "))
                nodes.append(node | {"end_idx": last})
            page = {"text": " ".join(lines), "VDOM": nodes}
        try:
            record = page_record({"url": "the page", **page, "KeyPhrases": None})
        except Unusable as error:
            allowed, problem = "a page as in OpenKP's files", f"{error.reason}: {error.detail}"
            raise bad_option("page", shown, allowed, problem) from None
        task = self.loaded.task
        whole, _ = encode(record, **self._encode)
        part = whole.within(task.cfg.max_positions, task.max_nodes)
        batch = batch_of_pages([part], task.source_dictionary.pad())
        return record, apply_to_sample(lambda x: x.to(self.device), batch)
