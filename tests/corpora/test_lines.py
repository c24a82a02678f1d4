"""Lines of packed files, work on them in several processes, and subwords learned from them."""

import lzma
import signal
import zipfile
from pathlib import Path

import pytest
import sentencepiece

from fairseq_clusterformer.corpora import binarize, files
from fairseq_clusterformer.corpora.binarize import train_sentencepiece
from fairseq_clusterformer.corpora.files import members
from fairseq_clusterformer.corpora.parallel import parallel
from fairseq_clusterformer.errors import UserError


def read_lines(path: Path) -> list:
    return list(files.raw_lines(path))


@pytest.mark.parametrize(
    ("central", "local", "value", "says"),
    [(8, 6, 1, "password required"), (10, 8, 97, "compression method is not supported")],
)
def test_a_zip_that_cannot_be_opened(central, local, value, says, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + central] = data[local] = value  # of both headers
    path.write_bytes(data)
    with pytest.raises(UserError, match=says) as caught:
        list(members(path, lambda _: True))
    assert str(caught.value).startswith(f"{path}: cannot be read")
    assert "\n" not in str(caught.value)


def test_a_line_may_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 100_000)
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"short\n" + b"a" * 5_000_000))
    with pytest.raises(UserError, match=r"a.xz: line 2 has more than 100,000 bytes .*; allowed: "):
        read_lines(path)
    path.write_bytes(lzma.compress(b"short\n" * 50_000))
    assert len(read_lines(path)) == 50_000
    plain = tmp_path / "a.txt"
    plain.write_bytes(b"a" * 5_000_000)  # as long as it looks
    assert len(read_lines(plain)) == 1


def ignores_interruptions(item):
    return item, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_order_is_kept_and_interruptions_are_left_to_the_main_process():
    found = list(parallel(ignores_interruptions, range(50), 2, "items", batch=7))
    assert found == [(item, True) for item in range(50)]
    assert list(parallel(str, range(3), 1, "items")) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(parallel(int, ["1", "x"], 2, "items", batch=1))


def test_a_line_of_any_length_is_learned_from(tmp_path):
    """A whole document on one line, of more bytes than sentencepiece takes."""
    text, model = tmp_path / "text", tmp_path / "model"
    text.write_text("\n" + "clusters attend 東京 " * 5000 + "\n", encoding="utf-8")
    train_sentencepiece([text], 300, model, at_most=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    learned = "".join(pieces.id_to_piece(i) for i in range(len(pieces)))
    assert {*"clusters東京"} <= {*learned}


def test_sentencepiece_learns_from_a_bounded_sample(tmp_path, monkeypatch):
    """Memory does not grow with the corpus; a small one is learned from whole."""
    given = []

    def train(sentence_iterator, **_):
        given.append(list(sentence_iterator))

    monkeypatch.setattr(binarize.sentencepiece.SentencePieceTrainer, "train", train)
    lines = [f"line {i:05}" for i in range(20_000)]
    texts = [tmp_path / "a", tmp_path / "b"]
    for text, part in zip(texts, (lines[:5000], lines[5000:]), strict=True):
        text.write_text("\n".join(part) + "\n")
    for sample in (1 << 20, 55_000, 55_000):
        monkeypatch.setattr(binarize, "SAMPLE", sample)
        train_sentencepiece(texts, 300, tmp_path / "model")
    assert given[0] == lines
    assert given[1] == given[2]
    assert 45_000 < sum(len(line) + 1 for line in given[2]) < 65_000
    assert min(given[2]) < lines[1000]
    assert max(given[2]) > lines[-1000]
