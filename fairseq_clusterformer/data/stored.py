"""Records of a split on disk, and the folders that hold them.

``SPLIT.PART``            .bin, .idx: fairseq's indexed files, an item for each record
``SPLIT.jsonl``           a JSON line for each record
``SPLIT.lines.npy``       where each of these lines begins, and the file's length, int64
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.data.data_utils import collate_tokens
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_clusterformer.compat.data import check_tokens
from fairseq_clusterformer.errors import bad_option, first_line, reading, refused


class RecordWriter(ExitStack):
    """Writes the files of a split, in a ``with`` statement; ``dtypes`` are those of each part."""

    def __init__(self, folder: Path, split: str, dtypes: Mapping[str, type]) -> None:
        super().__init__()
        self._prefix = folder / split
        self._builders = {
            part: MMapIndexedDatasetBuilder(f"{self._prefix}.{part}.bin", dtype=dtype)
            for part, dtype in dtypes.items()
        }
        self._texts = self.enter_context(open(f"{self._prefix}.jsonl", "wb"))  # noqa: SIM115
        self._lines = [0]

    def write(self, items: Sequence, texts: Mapping) -> None:
        """Add a record: an item for each part, and what becomes its line."""
        for builder, item in zip(self._builders.values(), items, strict=True):
            builder.add_item(torch.as_tensor(item))
        line = json.dumps(texts, ensure_ascii=False).encode() + b"\n"
        self._texts.write(line)
        self._lines.append(self._lines[-1] + len(line))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool | None:
        if kind is None:
            for part, builder in self._builders.items():
                builder.finalize(f"{self._prefix}.{part}.idx")
            np.save(f"{self._prefix}.lines.npy", np.array(self._lines, np.int64))
        return super().__exit__(kind, *error)


class RecordData(Sequence):
    """The records of a split, which the command `made_by` makes; only those that are asked for
    are read into memory. Raises FileNotFoundError: if a file of one of the `parts` is missing;
    ValueError: if the files do not hold equally many records."""

    def __init__(self, folder: Path | str, split: str, parts: Sequence[str], made_by: str) -> None:
        self.prefix = prefix = Path(folder) / split
        names = [f"{part}.{end}" for part in parts for end in ("bin", "idx")]
        for name in (*names, "jsonl", "lines.npy"):
            if not Path(f"{prefix}.{name}").is_file():
                allowed = f"a folder that `{made_by}` made, and a split of it"
                raise FileNotFoundError(f"{prefix}.{name}: no such file; allowed: {allowed}")
        self._parts = {part: MMapIndexedDataset(f"{prefix}.{part}") for part in parts}
        with reading(Path(f"{prefix}.lines.npy"), f"a file that `{made_by}` made"):
            self._lines = np.load(f"{prefix}.lines.npy", mmap_mode="r")
            lines = len(self._lines) - 1
        self._texts = Path(f"{prefix}.jsonl")
        counts = {part: len(data) for part, data in self._parts.items()} | {"lines": lines}
        if len(set(counts.values())) != 1 or self._texts.stat().st_size != self._lines[-1]:
            allowed = f"; allowed: files as `{made_by}` made them"
            raise ValueError(f"{prefix}: its files are of different data: {counts}{allowed}")

    def __len__(self) -> int:
        return len(self._lines) - 1

    def of_symbols(self, number: int) -> None:
        """Raises UserError: a token beyond a dictionary of so many symbols is damage."""
        for part in {"question", "document"} & self._parts.keys():
            check_tokens(self._parts[part], number)

    @property
    def sizes(self) -> np.ndarray:
        """The number of tokens of each document, [len(self)]."""
        return self._parts["document"].sizes

    def texts(self, index: int) -> dict:
        """The record's line of ``SPLIT.jsonl``."""
        with open(self._texts, "rb") as file, self.reading(index):
            file.seek(self._lines[index])
            return json.loads(file.read(self._lines[index + 1] - self._lines[index]))

    @contextmanager
    def reading(self, index: int) -> Iterator[None]:
        """Lets a damaged record be one line, a UserError that names it."""
        try:
            yield
        except (ValueError, RuntimeError, LookupError, TypeError) as error:
            if "allowed: " in str(error):
                raise
            problem = f"record {index} is damaged ({first_line(error)})"
            raise bad_option("DATA", self.prefix, "data as now prepared", problem) from None


def shard_of(data: str, epoch: int = 1) -> Path:
    """The folder of an epoch, of folders that are joined by ``:``; they take turns. fairseq
    validates on the first one, where also the dictionaries are."""
    shards = utils.split_paths(data)
    return Path(shards[(epoch - 1) % len(shards)])


def check_shards(data: str, dictionary: str = "dict.txt") -> None:
    """Raise ValueError for a folder, of some joined by ``:``, with another ``dictionary``."""
    first, *others = (Path(shard, dictionary) for shard in utils.split_paths(data))
    for other in others:
        if not other.is_file() or other.read_bytes() != first.read_bytes():
            problem = "differs from" if other.is_file() else "is missing; it must equal"
            raise refused("DATA", data, "shards with one dictionary", f"{other} {problem} {first}")


def load_dictionary(folder: Path | str, made_by: str = "clusterformer prepare") -> Dictionary:
    """The dictionary of a prepared folder, or of several whose paths a text joins by ``:``. Raises
    FileNotFoundError: there is none; ``made_by`` is the command that makes such folders;
    ValueError: folders with different ones."""
    path = (shard_of(folder) if isinstance(folder, str) else folder) / "dict.txt"
    if not path.is_file():
        allowed = f"a folder that `{made_by}` made"
        raise FileNotFoundError(f"DATA is {folder}: it has no {path.name}; allowed: {allowed}")
    if isinstance(folder, str):
        check_shards(folder)
    return Dictionary.load(str(path))


def binarized(path: Path, dictionary: Dictionary, combine: bool) -> FairseqDataset:
    """The lines of a split; raises FileNotFoundError: there are none."""
    lines = data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)
    if lines is None:
        allowed = "a split of DATA, as fairseq-preprocess writes it"
        raise FileNotFoundError(f"{path}.bin, {path.name}.idx: not both there; allowed: {allowed}")
    return lines


def padded(samples: Sequence[Mapping], name: str, value: int) -> torch.Tensor:
    """A field of all samples, [B, N]; what is missing gets the value."""
    return collate_tokens([sample[name] for sample in samples], value)


class BySize(FairseqDataset):
    """Samples in the order of their lengths. A subclass has ``batch(samples)``, what a batch holds
    beside the samples' ``id`` and number."""

    sizes: np.ndarray  # tokens of each sample, int [n]
    shuffle: bool  # samples of one length come in a random order, instead of their own
    epoch = 1  # for samples that differ between epochs

    def __len__(self) -> int:
        return len(self.sizes)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    num_tokens = size

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch; of no samples, as fairseq has it, nothing."""
        if not samples:
            return {}
        ids = torch.tensor([sample["id"] for sample in samples])
        return {"id": ids, "nsentences": len(samples), **self.batch(samples)}
