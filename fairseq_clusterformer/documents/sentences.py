"""Vectors of sentences, by a pre-trained encoder as it is."""

from argparse import Namespace
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.encoder_only import masked_mean
from fairseq_clusterformer.models.pretrained import load_pretrained, read_config

from .sections import Section, Splitter, together
from .sources import Source

LONGEST = 254  # tokens of a part, as all-MiniLM-L6-v2 was trained
_IN_A_BATCH = 4096  # tokens


class SentenceEncoder:
    """The mean of an encoder's states over the tokens of a text, scaled to length 1 (Reimers and
    Gurevych 2019). Raises UserError: a folder of another form, or with something missing.

    Args:
        folder: of BERT's form, with its ``tokenizer.json``, such as all-MiniLM-L6-v2.
        device, dtype: where and in what it computes.
    """

    def __init__(
        self, folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self._dictionary, self._device = Dictionary(), device
        try:
            _, sizes = read_config(folder, "--encoder")
            pieces = Subwords(folder / TOKENIZER)
            for symbol in pieces.symbols:
                self._dictionary.add_symbol(symbol)
            args = Namespace(**sizes, encoder_attention="full")
            most = sizes["window_positions"]
            words = {"source_dictionary": self._dictionary, "max_positions": lambda: most}
            model = ClusterformerMaskedLM.build_model(args, SimpleNamespace(**words))
            load_pretrained(model, str(folder), "--encoder")
        except (CheckpointError, TypeError, ValueError) as error:
            raise UserError(str(error)) from None
        self.model = model.encoder.eval().to(device, dtype)
        self._longest = min(LONGEST, most - 3)
        self._splitter = Splitter(pieces, self._dictionary)

    def sections(self, source: Source) -> list[Section]:
        """A document in passages of whole paragraphs, each of one part; a paragraph that is too
        long, in pieces."""
        return self._splitter.sections(source, self._longest)

    def of_sections(self, sections: Sequence[Section]) -> list[Tensor]:
        """Vectors [parts, D] of each section: a long one has several parts."""
        parts = [self._parts(section.text) for section in sections]
        return list(self._vectors([*chain(*parts)]).split([*map(len, parts)]))

    def of_question(self, text: str) -> Tensor:
        """The vector [D] of a text, of which the beginning counts if it is long."""
        return self._vectors(self._parts(text)[:1])[0]

    def _parts(self, text: str) -> list[Tensor]:
        """The tokens of a text in parts of equal lengths."""
        tokens = self._splitter.symbols(text)
        return [*tokens.tensor_split(max(1, -(-len(tokens) // self._longest)))]

    @torch.no_grad()
    def _vectors(self, parts: Sequence[Tensor]) -> Tensor:
        """Of each part, float32 [parts, D] on the CPU."""

        def read(rows: list[Tensor]) -> Tensor:
            tokens = pad_sequence(rows, True, self._dictionary.pad()).to(self._device)
            states = self.model(tokens)["encoder_out"][0].transpose(0, 1)
            means = masked_mean(states, tokens != self._dictionary.pad())
            return normalize(means.float()).cpu()

        rows = [framed(part, self._dictionary, self._longest + 2) for part in parts]
        return torch.stack(together(rows, len, _IN_A_BATCH, read))
