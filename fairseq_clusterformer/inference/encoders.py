"""Readers and masked language models."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.encoder_only import EncoderOnlyModel

from .documents import text_source
from .load import Loaded
from .pretrained import Pretrained
from .read import DocumentReader, FoundAnswer


class Reader(Pretrained):
    """Answers questions by pieces of documents."""

    kind = "reader"
    abilities = ("answer", "encode")

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.reader = DocumentReader(loaded, cpu=self.device.type == "cpu")

    def answer(
        self, question: str, documents: str | Path | Sequence[str | Path], *, top: int = 3
    ) -> list[FoundAnswer]:
        """Answer a question; see `DocumentReader.answer`.

        Args:
            documents: one or several: a string is a text, a `Path` a file or a folder.
            top: how many answers, the best first.
        """
        return self.reader.answer(question, documents, top=top)

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        """As the reader sees a document without a question."""
        nothing = torch.empty(0, dtype=torch.int64)
        question = framed(nothing, self.loaded.task.source_dictionary, 2)[None].to(self.device)
        documents = [s.tokens[None] for s in self.reader.sections(text_source(text, "text"))]
        read = [self.model.encoder(question, tokens.to(self.device)) for tokens in documents]
        return torch.cat([reading.document[0] for reading in read])


class MaskedLanguageModel(Pretrained):
    """An encoder that was trained to guess masked words, such as RoBERTa."""

    kind = "masked language model"
    abilities = ("encode",)

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        dictionary = self.coding.dictionary
        tokens = framed(self.coding.encode(text), dictionary, 1 << 30)
        most = self.model.max_positions()
        if len(tokens) > most:
            shown = repr(text if len(text) <= 60 else f"{text[:60]}...")
            raise bad_option("text", shown, f"{most} or fewer", f"has {len(tokens)} tokens")
        tokens = tokens[None].to(self.device)
        if isinstance(self.model, EncoderOnlyModel):
            return self.model.encoder(tokens)["encoder_out"][0][:, 0]
        return self.model(tokens, features_only=True)[0][0]  # fairseq's roberta
