"""Packed files that are locked, strange, or far larger than they look."""

import lzma
import zipfile
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora import lines
from fairseq_clusterformer.corpora.lines import members
from fairseq_clusterformer.errors import UserError
from tests.corpora.commands import one_line, run, write


def read_members(path: Path) -> list:
    return list(members(path, lambda _: True))


def read_lines(path: Path) -> list:
    return list(lines.raw_lines(path))


@pytest.mark.parametrize("read", [read_lines, read_members])
@pytest.mark.parametrize(
    ("central", "local", "value", "says"),
    [(8, 6, 1, "password required"), (10, 8, 97, "compression method is not supported")],
)
def test_a_zip_that_cannot_be_opened(read, central, local, value, says, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + central] = data[local] = value  # of both headers
    path.write_bytes(data)
    with pytest.raises(UserError, match=says) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: cannot be read after ")
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


UTF8 = "Stra\u00dfe\tstreet\nx\ty\n" * 4
LATIN = UTF8.encode("latin-1")
ICONV = "as iconv -f latin1 -t utf-8 makes of Latin-1"


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("prepare lm text {0} {0}.out", "--encoding NAME for another, or --pattern without it"),
        ("prepare classification text {0} {0}.out", "--encoding NAME for another"),
        (
            "prepare translation text {0}.out --source-lang de --target-lang en --train "
            "{0}/train.tsv --valid {0}/valid.tsv --test {0}/test.tsv",
            ICONV,
        ),
    ],
)
def test_all_files_of_another_encoding_are_named(command, remedy, tmp_path, capsys):
    folder = tmp_path / "in"
    for split, text in (("train", UTF8), ("valid", LATIN), ("test", LATIN)):
        write(
            folder / f"{split}.tsv", text + b"x\ty\n" * 4 if text == LATIN else text + "x\ty\n" * 4
        )
    assert run(command.format(folder)) == 1
    line = one_line(capsys)
    for split in ("valid", "test"):
        assert f"{folder}/{split}.tsv: line 1: byte 0xDF cannot be read as UTF-8" in line
    assert line.endswith(f"; allowed: text in this encoding, {remedy}")
