"""What trained models of ETC can do: states of documents."""

import torch
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_clusterformer.data.characters import sentences as sentences_in
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.use.base import MaskedLanguageModel


class DocumentModel(MaskedLanguageModel):
    """ETC's encoder, which reads a text as a document of sentences."""

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        parts = [line[i:j] for line in text.splitlines() for i, j in sentences_in(line)]
        if not parts:
            raise bad_option("text", repr(text), "a word or more")
        given = self.loaded.task.document([self.coding.encode(part) for part in parts])
        given = apply_to_sample(lambda x: x.to(self.device), given)
        return self.model.read(given["src_tokens"], given["parts"]).of_long[0]
