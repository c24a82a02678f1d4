"""Downloads: resumed, verified, and never unverified without a word."""

import http.server
import threading
from hashlib import sha1, sha256

import pytest

from fairseq_clusterformer.corpora.files import Archive, checksum, checksums, download, obtain
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import make_folder
from tests.corpora.commands import pack, write

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def archive(tmp_path):
    """A zip with one member, and its description."""
    path = pack(tmp_path / "zip" / "corpus.zip", {"corpus/text": CONTENT})
    checksum = "sha256:" + sha256(path.read_bytes()).hexdigest()
    return Archive(path.as_uri(), checksum, {"text": "sha1:" + sha1(CONTENT).hexdigest()})


class _Breaking(http.server.BaseHTTPRequestHandler):
    """Serves `content`, but breaks off in the middle until asked to go on from there."""

    content, ranges = b"", []

    def do_GET(self):
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.ranges.append(start)
        self.send_response(206)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = len(self.content) if start else len(self.content) // 2
        self.wfile.write(self.content[start:end])

    def log_message(self, *_):
        pass


def test_broken_download_is_resumed(archive, tmp_path):
    content = (tmp_path / "zip" / "corpus.zip").read_bytes()
    handler = type("Handler", (_Breaking,), {"ranges": [], "content": content})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/corpus.zip"
        there = Archive(url, archive.checksum, archive.members)
        with pytest.raises(
            UserError, match=r"could not download http.* broken off .*--source DIR"
        ):
            download(there, tmp_path / "work")
        assert download(there, tmp_path / "work").read_bytes() == content
        server.shutdown()
    assert handler.ranges == [0, len(content) // 2]


def test_wrong_download_is_removed(archive, tmp_path):
    wrong = Archive(archive.url, "sha256:0", archive.members)
    with pytest.raises(UserError, match="; allowed: sha256 0; run again.*--source DIR"):
        download(wrong, tmp_path / "work")
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("known", [True, False])
def test_what_cannot_be_verified_is_said_and_its_checksum_kept(archive, tmp_path, capsys, known):
    offered = archive if known else Archive(archive.url, None, {"text": None})

    def build(work, out):
        path = obtain([offered], None, work)["text"]
        assert path.read_bytes() == CONTENT
        return {}

    record = make_folder(tmp_path / "dest", {}, build)
    warning = f"{archive.url} could not be verified, because nobody publishes a checksum"
    printed = capsys.readouterr().err
    assert (warning in printed) == (not known)
    assert (archive.checksum.removeprefix("sha256:") in printed) == (not known)
    assert record["downloads"] == {"corpus.zip": archive.checksum}
    assert not (tmp_path / "dest.partial").exists()


@pytest.mark.parametrize("name", ["text", "corpus/text", "corpus.zip", "corpus.tgz"])
def test_files_at_hand(archive, tmp_path, name):
    content = (tmp_path / "zip" / "corpus.zip").read_bytes() if "zip" in name else CONTENT
    write(tmp_path / "source" / name, content)
    if "tgz" in name:
        pack(tmp_path / "source" / name, {"corpus/text": CONTENT})
        archive = Archive("http://nowhere/corpus.tgz", None, archive.members)
    assert obtain([archive], tmp_path / "source", tmp_path)["text"].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "--source is .*source: holds no text; allowed: a folder that holds text or corp"),
        ({"text": b"changed"}, r"text: has 7 bytes with sha1 \w+; allowed: sha1 \w+$"),
        ({"corpus.zip": b"no zip"}, "corpus.zip: cannot be read"),
    ],
)
def test_wrong_files_at_hand(archive, tmp_path, files, message):
    (tmp_path / "source").mkdir()
    for name, content in files.items():
        write(tmp_path / "source" / name, content)
    with pytest.raises(UserError, match=message):
        obtain([archive], tmp_path / "source", tmp_path)
    with pytest.raises(UserError, match="--source is nowhere: no such folder"):
        obtain([archive], type(tmp_path)("nowhere"), tmp_path)


def test_sources_of_equal_names_keep_a_checksum_each(tmp_path):
    paths = [write(tmp_path / place / "texts/train.txt", place) for place in ("one", "two")]
    sums, names = map(checksum, paths), ("texts/train.txt", "texts/train.txt (2)")
    assert checksums(paths) == dict(zip(names, sums, strict=True))
