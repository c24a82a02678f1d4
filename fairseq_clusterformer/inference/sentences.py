"""Vectors of sentences, by a pre-trained encoder as it is."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.data.subwords import TOKENIZER, TokenizerSubwords
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.models.encoder_only import masked_mean
from fairseq_clusterformer.models.pretrained import load_folder, sizes_of

from .sections import Section

LONGEST = 254  # tokens of a part, as all-MiniLM-L6-v2 was trained
_IN_A_BATCH = 4096  # tokens


class SentenceEncoder:
    """The mean of an encoder's states over the tokens of a text, scaled to length 1 (Reimers and
    Gurevych 2019).

    Args:
        folder: of BERT's form, with its ``tokenizer.json``, such as all-MiniLM-L6-v2.
        device, dtype: where and in what it computes.

    Raises:
        UserError: a folder of another form, or with something missing.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._dictionary, self._device = Dictionary(), device
        try:
            sizes = sizes_of(folder, "--encoder")
            self._pieces = TokenizerSubwords(folder / TOKENIZER)
            for symbol in self._pieces.symbols:
                self._dictionary.add_symbol(symbol)
            # a text is a question without a document
            windows = {"cluster_layers": "", "window_size": 1, "window_stride": 1}
            args = Namespace(**sizes, **windows, cluster_attention="window")
            task = SimpleNamespace(source_dictionary=self._dictionary)
            reader = ClusterformerReader.build_model(args, task)
            load_folder(reader, str(folder), "--encoder")
        except (CheckpointError, TypeError, ValueError) as error:
            raise UserError(str(error)) from None
        self.model = reader.encoder.eval().to(device, dtype)
        self._longest = min(LONGEST, sizes["window_positions"] - 3)
        self._ids = [self._dictionary.index(symbol) for symbol in self._pieces.symbols]
        self._ids = torch.tensor(self._ids)

    def of_sections(self, sections: Sequence[Section]) -> list[Tensor]:
        """Vectors [parts, D] of each section: a long one has several parts."""
        parts = [self._parts(section.text) for section in sections]
        return list(self._vectors(sum(parts, [])).split([*map(len, parts)]))

    def of_question(self, text: str) -> Tensor:
        """The vector [D] of a text, of which the beginning counts if it is long."""
        return self._vectors(self._parts(text)[:1])[0]

    def _parts(self, text: str) -> list[Tensor]:
        """The tokens of a text in parts of equal lengths."""
        tokens = self._ids[self._pieces.encode(text).ids]
        return [*tokens.tensor_split(max(1, -(-len(tokens) // self._longest)))]

    @torch.no_grad()
    def _vectors(self, parts: Sequence[Tensor]) -> Tensor:
        """Of each part, float32 [parts, D] on the CPU."""
        rows = [framed(part, self._dictionary, self._longest + 2) for part in parts]
        found, step = [], max(1, _IN_A_BATCH // (self._longest + 2))
        for first in range(0, len(rows), step):
            batch = rows[first : first + step]
            tokens = pad_sequence(batch, True, self._dictionary.pad()).to(self._device)
            reading = self.model(tokens, tokens[:, :0])
            means = masked_mean(reading.question[:, 0], ~reading.question_padding[:, 0])
            found.append(normalize(means.float()).cpu())
        return torch.cat(found)
