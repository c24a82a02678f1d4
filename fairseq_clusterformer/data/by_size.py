"""The base of data sets whose batches hold samples of similar length."""

import numpy as np
from fairseq.data import FairseqDataset


class BySize(FairseqDataset):
    """Samples in the order of their lengths."""

    sizes: np.ndarray  # tokens of each sample, int [n]
    shuffle: bool  # samples of one length come in a random order, instead of their own

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    num_tokens = size

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]
