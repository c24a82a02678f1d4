"""What a model makes of documents before it sees a question, kept for the questions to come.

An index is a folder with one file per document. A file's name is made of the document's name and
of a hash: of the tokens that the model reads and of the model itself. So a document that changed
is encoded anew, and so are all documents for another model. Encodings are float16.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import replaced

from ..answers import text_mask
from .found import Section

logger = logging.getLogger(__name__)

MARK = ".clusterformer-index"
_AT_ONCE = 256  # sections, of whole documents
_FORMAT = b"1"  # of what a hash stands for: another one makes older files unknown
_ALLOWED = "a new or empty folder, or one that clusterformer has made as an index"


class Encodings:
    """Encodings of sections, in memory as long as the sections are there.

    Args:
        model: what encodes; its parameters are part of the hash.
        encode: makes states [W, D] of each of some sections.
        folder: an index, which is made if need be; None: memory alone.

    Raises:
        UserError: a folder that holds something else, or cannot be made.
    """

    def __init__(
        self,
        model: nn.Module,
        encode: Callable[[Sequence[Section]], list[Tensor]],
        folder: Path | None = None,
    ) -> None:
        self._encode, self.folder = encode, folder
        self._kept: WeakKeyDictionary[Section, Tensor] = WeakKeyDictionary()
        if folder is not None:
            _claim(folder)
            self._model = _hash_of_model(model)

    def of(self, sections: Sequence[Section]) -> list[Tensor]:
        """States of sections, float16 [W, D] on the CPU.

        Sections of one document must be given together and in their order.

        Raises:
            UserError: an index that cannot be written.
        """
        absent = [section for section in sections if section not in self._kept]
        if self.folder is None:
            self._add(absent)
            return [self._kept[section] for section in sections]
        waiting: list[tuple[Path, list[Section]]] = []
        for file, document in self._from_folder(absent):
            waiting.append((file, document))
            if sum(len(document) for _, document in waiting) >= _AT_ONCE:
                self._add_documents(waiting)
                waiting = []
        self._add_documents(waiting)
        return [self._kept[section] for section in sections]

    def _add(self, sections: Sequence[Section]) -> None:
        for section, states in zip(sections, self._encode(sections), strict=True):
            self._kept[section] = states.to("cpu", torch.float16)

    def _add_documents(self, documents: Sequence[tuple[Path, list[Section]]]) -> None:
        """Encode documents and write their files, so that an end in between loses little."""
        self._add([section for _, document in documents for section in document])
        for file, document in documents:
            self._write(file, [self._kept[section] for section in document])

    def _from_folder(self, sections: Sequence[Section]) -> list[tuple[Path, list[Section]]]:
        """Read what is there; return the files that are not, and the sections of each."""
        unread = []
        for _, document in groupby(sections, lambda each: each.source):
            document = list(document)
            file = self._file(document)
            if found := _read(file, len(document)):
                self._kept.update(zip(document, found, strict=True))
            else:
                unread.append((file, document))
        return unread

    def _file(self, document: Sequence[Section]) -> Path:
        """Where a document's encodings are, or should be."""
        source = document[0].source
        name = hashlib.sha256(os.fsencode(os.path.abspath(source.name)) + self._model)
        content = hashlib.sha256(self._model)
        for section in document:
            tokens, mask = section.tokens.numpy(), text_mask(section.document.characters)
            content.update(len(tokens).to_bytes(8))
            content.update(tokens.tobytes())
            content.update(mask.numpy().tobytes())
        return self.folder / f"{name.hexdigest()[:16]}-{content.hexdigest()[:32]}.safetensors"

    def _write(self, file: Path, states: Sequence[Tensor]) -> None:
        """Write a file whole or not at all; those of the same document before it changed go."""
        lengths = torch.tensor([len(each) for each in states])
        try:
            with replaced(file) as new:
                save_file({"states": torch.cat(list(states)), "lengths": lengths}, new)
            for older in file.parent.glob(f"{file.name.split('-')[0]}-*.safetensors"):
                if older != file:
                    older.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            raise _unusable(self.folder, f"cannot be written ({error})") from None


def _read(file: Path, number: int) -> list[Tensor]:
    """The states of each of a document's sections; none if there is no such file."""
    try:
        tensors = load_file(file)
        states = tensors["states"].split(tensors["lengths"].tolist())
        if len(states) != number:
            raise ValueError(f"{len(states)} sections instead of {number}")
        return list(states)
    except FileNotFoundError:
        return []
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        logger.warning("%s is damaged (%s): its document is encoded anew", file, error)
        return []


def _claim(folder: Path) -> None:
    """Make the folder of an index, and mark it.

    Raises:
        UserError: if it is no folder, or holds something and has no mark.
    """
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
