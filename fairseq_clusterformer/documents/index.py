"""What a model makes of documents before it sees a question, kept for the questions to come.

An index is a folder with a file for each 256 sections of a document. A file's name is made of the
document's name and of a hash: of the tokens that the model reads and of the model itself. So a
document that changed is encoded anew, and so are all documents for another model. Each section
has a checksum: what has been damaged or edited is encoded anew as well. The words of all documents
are in a file of their own, see `word_index`.
"""

import hashlib
import logging
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import replaced

from ..answers import text_mask
from .sections import Section

logger = logging.getLogger(__name__)

MARK = ".clusterformer-index"
MOST_KEPT = 300_000  # words whose encodings stay in memory
MOST_ENCODED = 1024  # sections that are encoded before a question is asked, without an index
_AT_ONCE = 256  # sections in a file, and those that are encoded together
_FORMAT = b"2"  # of what a hash stands for: another one makes older files unknown
_ALLOWED = "a new or empty folder, or one that clusterformer has made as an index"

DAMAGE = (OSError, SafetensorError, ValueError, TypeError, RuntimeError)

Block = tuple[Path, Sequence[Section]]


class Encodings:
    """Encodings of sections: the latest in memory, all in an index if there is one. Raises
    UserError: a folder that holds something else, or cannot be made.

    Args:
        model: what encodes; its parameters are part of the hash.
        encode: makes states [W, D] of the words of each of some sections.
        folder: an index, which is made if need be; None: memory alone.
    """

    def __init__(
        self,
        model: nn.Module,
        encode: Callable[[Sequence[Section]], list[Tensor]],
        folder: Path | None = None,
    ) -> None:
        self._encode, self.folder = encode, folder
        self._kept: OrderedDict[Section, Tensor] = OrderedDict()
        # of a section in the index: the file, rows [first, last) of it, and their checksum
        self._places: WeakKeyDictionary[Section, tuple[Path, int, int, int]] = WeakKeyDictionary()
        if folder is not None:
            claim(folder)
            self._model = _hash_of_model(model)

    def prepare(self, sections: Sequence[Section]) -> None:
        """Encode sections before they are asked for: into the index, or else into memory, unless
        they are too many for that."""
        if self.folder is not None:
            self.write(sections)
        elif len(sections) <= MOST_ENCODED:
            self.of(sections)

    def of(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of the sections' words, float16 [W, D] on the CPU."""
        absent = [section for section in sections if section not in self._kept]
        stored = [section for section in absent if section in self._places]
        for file, own in groupby(stored, lambda section: self._places[section][0]):
            self._load(file, own)
        # also those of a file that has gone, as another process has read a newer document
        self._add([section for section in absent if section not in self._kept])
        found = [self._kept[section] for section in sections]
        words = sum(map(len, self._kept.values()))
        while words > MOST_KEPT and self._kept:
            words -= len(self._kept.popitem(last=False)[1])
        return found

    def write(self, sections: Sequence[Section]) -> None:
        """Encode what the index lacks, file by file, so that an end in between loses little;
        sections of one document come together and in their order. Raises UserError: an index that
        cannot be written."""
        waiting: list[Block] = []
        there = [*self.folder.glob("*.safetensors")]
        names: set[str] = set()
        current: set[Path] = set()
        absent = [section for section in sections if section not in self._places]
        for _, document in groupby(absent, lambda section: section.source):
            document = list(document)
            blocks = [document[i : i + _AT_ONCE] for i in range(0, len(document), _AT_ONCE)]
            files = [self._file(block) for block in blocks]
            names.add(_name_of(files[0]))
            current.update(files)
            for file, block in zip(files, blocks, strict=True):
                if not self._find(file, block):
                    waiting.append((file, block))
                if sum(len(block) for _, block in waiting) >= _AT_ONCE:
                    self._write(waiting)
                    waiting = []
        self._write(waiting)
        for file in there:  # of documents before they changed
            if _name_of(file) in names and file not in current:
                file.unlink(missing_ok=True)

    def _load(self, file: Path, sections: Iterable[Section]) -> None:
        """Take sections from a file, unless it has gone or something is wrong with it."""
        try:
            with safe_open(file, "pt") as tensors:
                states = tensors.get_slice("states")
                for section in sections:
                    _, first, last, expected = self._places[section]
                    if _checksum(found := states[first:last]) != expected:
                        raise ValueError("a section has another checksum")
                    self._kept[section] = found
        except FileNotFoundError:
            return
        except DAMAGE as error:
            reject(file, error)

    def _add(self, sections: Sequence[Section]) -> None:
        encoded = self._encode(sections) if sections else []
        for section, states in zip(sections, encoded, strict=True):
            self._kept[section] = states.to("cpu", torch.float16)

    def _file(self, block: Sequence[Section]) -> Path:
        """Where sections are, or should be."""
        source = block[0].source
        name = hashlib.sha256(os.fsencode(os.path.abspath(source.name)) + self._model)
        content = hashlib.sha256(self._model)
        for section in block:
            tokens, document = section.encode(section)
            content.update(len(tokens).to_bytes(8))
            content.update(tokens.numpy().tobytes())
            content.update(text_mask(document.characters).numpy().tobytes())
        return self.folder / f"{name.hexdigest()[:16]}-{content.hexdigest()[:32]}.safetensors"

    def _find(self, file: Path, block: Sequence[Section]) -> bool:
        """Note where the sections of a file lie in it; False: there is no such file."""
        try:
            with safe_open(file, "pt") as tensors:
                ends = tensors.get_tensor("lengths").cumsum(0).tolist()
                checksums = tensors.get_tensor("checksums").tolist()
                rows = tensors.get_slice("states").get_shape()[0]
            if not len(ends) == len(checksums) == len(block) or ends[-1] != rows:
                raise ValueError(f"{len(ends)} sections instead of {len(block)}")
        except FileNotFoundError:
            return False
        except DAMAGE as error:
            reject(file, error)
            return False
        for section, *place in zip(block, [0, *ends], ends, checksums, strict=False):
            self._places[section] = file, *place
        return True

    def _write(self, blocks: Sequence[Block]) -> None:
        """Encode sections and write each file whole or not at all."""
        self._add([section for _, block in blocks for section in block])
        for file, block in blocks:
            states = [self._kept.pop(section) for section in block]
            own = {"lengths": [*map(len, states)], "checksums": [*map(_checksum, states)]}
            tensors = {name: torch.tensor(numbers) for name, numbers in own.items()}
            try:
                with replaced(file) as new:
                    save_file({"states": torch.cat(states), **tensors}, new)
            except (OSError, SafetensorError) as error:
                raise _unusable(self.folder, f"cannot be written ({error})") from None
            self._find(file, block)


def _checksum(states: Tensor) -> int:
    return zlib.crc32(states.contiguous().numpy())


def reject(file: Path, error: Exception) -> None:
    """Remove a damaged file, so that the next run makes it anew."""
    logger.warning("%s is damaged (%s): it is made anew", file, error)
    with suppress(OSError):
        file.unlink()


def _name_of(file: Path) -> str:
    """The hash of a document's name, in the name of a file."""
    return file.name.partition("-")[0]


def claim(folder: Path) -> None:
    """Make the folder of an index, and mark it."""
    mark = folder / MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if mark.is_file():
            return
        if there := min((path.name for path in folder.iterdir()), default=""):
            raise _unusable(folder, f"holds {there}, and is no index")
        mark.touch()
    except OSError as error:
        problem = "is a file" if folder.is_file() else f"cannot be made ({error.strerror})"
        raise _unusable(folder, problem) from None


def _unusable(folder: Path, problem: str) -> UserError:
    return bad_option("--index", folder, _ALLOWED, problem)


def _hash_of_model(model: nn.Module) -> bytes:
    """Of a model's form, its parameters and its buffers."""
    found = hashlib.sha256(_FORMAT + str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found.update(data.numpy().tobytes())
    return found.digest()
