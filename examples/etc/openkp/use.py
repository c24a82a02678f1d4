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

from .pages import batch_of_pages, encode_record, page_of
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
        self._subwords = load_prepared(loaded.folder)
        symbols = self._subwords.symbols
        self._to_index = [loaded.task.source_dictionary.index(symbol) for symbol in symbols]

    @torch.no_grad()
    def keyphrases(self, page: WebPage, most: int = 5) -> list[tuple[str, float]]:
        """The best phrases of a page in lower case, ``most`` or fewer, each with its logit; what
        is longer than a page of the training is cut. Raises UserError: a page that is none, or a
        text for a model that reads what nodes look like.

        Args:
            page: with "text" and "VDOM", as in OpenKP's files; or a text, each line of which is a
                node, for a model that does not read what nodes look like.
        """
        record = self._record(page)
        logits, _ = self.model(**self._batch(record))
        return best_keyphrases(logits[0].cpu(), record.words, most)

    def _record(self, page: WebPage) -> PageRecord:
        given = page if isinstance(page, Mapping) else self._of_lines(page)
        try:
            return page_record({"url": "the page", **given, "KeyPhrases": None})
        except Unusable as error:
            allowed, problem = "a page as in OpenKP's files", f"{error.reason}: {error.detail}"
            raise bad_option("page", _shown(page), allowed, problem) from None

    def _of_lines(self, text: str) -> dict[str, Any]:
        """A page whose nodes are the lines of a text."""
        if self.model.visual is not None:
            allowed = "a page with VDOM, or a model trained with --no-visual-features"
            problem = "it does not say what its nodes look like"
            raise bad_option("page", _shown(text), allowed, problem)
        nodes, last = [], 0
        for words in filter(None, map(str.split, text.splitlines())):
            node = {"text": " ".join(words), "feature": [0] * VISUAL}
            nodes.append(node | {"start_idx": last, "end_idx": last + len(words)})
            last += len(words)
        return {"text": " ".join(node["text"] for node in nodes), "VDOM": nodes}

    def _batch(self, record: PageRecord) -> dict[str, Any]:
        cfg = self.loaded.task.cfg
        page = page_of(encode_record(record, model=self._subwords), self._to_index)
        if self.loaded.task.as_text:
            page = page.as_text(record)
        page = page.within(cfg.max_positions, cfg.max_nodes)
        batch = batch_of_pages([page], self.loaded.task.source_dictionary.pad())
        return apply_to_sample(lambda x: x.to(self.device), batch)

    @torch.no_grad()
    def _states(self, text: WebPage) -> Tensor:
        return self.model.encoded(**self._batch(self._record(text)))[0]


def _shown(page: WebPage) -> str:
    text = page if isinstance(page, str) else str(page.get("text"))
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
