"""Packed files that are locked, strange, or far larger than they look."""

import lzma
import zipfile
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora import lines
from fairseq_clusterformer.corpora.lines import members
from fairseq_clusterformer.errors import UserError


def read_lines(path: Path) -> list:
    return list(lines.raw_lines(path))


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
    monkeypatch.setattr(lines, "LONGEST", 100_000)
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"short\n" + b"a" * 5_000_000))
    with pytest.raises(UserError, match=r"a.xz: line 2 has more than 100,000 bytes .*; allowed: "):
        read_lines(path)
    path.write_bytes(lzma.compress(b"short\n" * 50_000))
    assert len(read_lines(path)) == 50_000
    plain = tmp_path / "a.txt"
    plain.write_bytes(b"a" * 5_000_000)  # as long as it looks
    assert len(read_lines(plain)) == 1
