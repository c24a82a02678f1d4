"""What a trained model of keyphrases can do."""

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_clusterformer.corpora.question_answering.records import Unusable
from fairseq_clusterformer.data.subwords import load_prepared
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.use.base import Pretrained

from .pages import VISUAL, Page, batch_of_pages, encode, page_of
from .task import best_keyphrases


class KeyphraseModel(Pretrained):
    """Finds the phrases that say what a page is about; of the task ``etc_keyphrases``."""

    kind = "model of keyphrases"
    abilities = ("keyphrases", "encode")

    @torch.no_grad()
    def keyphrases(self, page: str | Mapping, most: int = 5) -> list[tuple[str, float]]:
        """The best phrases of a page in lower case, ``most`` or fewer, each with its logit; what
        is longer than a page of the training is cut. Raises UserError: a page that is none, or a
        text for a model that reads what nodes look like.

        Args:
            page: with "text" and "VDOM", as in OpenKP's files; or a text, each line of which is a
                node, for a model that does not read what nodes look like.
        """
        words, batch = self._read(page)
        return best_keyphrases(self.model(**batch)[0][0].cpu(), words, most)

    @torch.no_grad()
    def _states(self, text: str | Mapping) -> Tensor:
        return self.model.encoded(**self._read(text)[1])[0]

    @cached_property
    def _subwords(self) -> dict[str, Any]:
        model, index = load_prepared(self.loaded.folder), self.loaded.task.dictionary.index
        return {"model": model, "to_index": [index(symbol) for symbol in model.symbols]}

    def _read(self, given: str | Mapping) -> tuple[list[str], dict[str, Any]]:
        """The words of a page, and what the model reads of it."""
        task = self.loaded.task
        try:
            page = (
                self._of_text(given) if isinstance(given, str) else page_of({"url": "", **given})
            )
        except Unusable as error:
            shown = repr(given if isinstance(given, str) else str(given.get("text")))[:60]
            problem = f"{error.reason}: {error.detail}"
            raise bad_option("page", shown, "a page as in OpenKP's files", problem) from None
        whole = Page.of(*encode(page, **self._subwords))
        part = whole.within(task.cfg.max_positions, task.cfg.max_nodes)
        batch = batch_of_pages([part], task.source_dictionary.pad())
        return page["text"].split(" "), apply_to_sample(lambda x: x.to(self.device), batch)

    def _of_text(self, text: str) -> dict[str, Any]:
        if self.model.visual is not None:
            raise Unusable("a text", "this model reads VDOM, what a page's nodes look like")
        lines = [words for words in map(str.split, text.splitlines()) if words]
        if not lines:
            raise Unusable("empty text", "no line has a word")
        nodes = [*pairwise(accumulate(map(len, lines), initial=0))]
        page = {"text": " ".join(" ".join(words) for words in lines), "nodes": nodes}
        return page | {"visual": [[0] * VISUAL] * len(nodes), "places": []}
