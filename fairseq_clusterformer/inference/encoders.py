"""The states of masked language models."""

import torch
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.encoder_only import EncoderOnlyModel

from .load import Loaded
from .pretrained import Pretrained


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
            return self.model.encoded(tokens)[0][0]
        return self.model(tokens, features_only=True)[0][0]  # fairseq's roberta
