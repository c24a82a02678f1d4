"""The data scripts: every split exact, nothing half-made, every mistake told in one line."""

import gzip
import http.server
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from hashlib import sha1, sha256

import numpy as np
import pytest
from fairseq.data import Dictionary, indexed_dataset

from fairseq_clusterformer.cli.prepare import lm as prepare_lm
from fairseq_clusterformer.corpora import binarize as lm_binarize
from fairseq_clusterformer.corpora.download import Archive
from fairseq_clusterformer.corpora.language_modelling import corpora as lm_corpora
from fairseq_clusterformer.corpora.language_modelling import text as lm_text
from fairseq_clusterformer.data.bytes import byte_symbols, decode, encode
from fairseq_clusterformer.data.coding import BYTES_PER_ITEM, ByteCoding
from fairseq_clusterformer.errors import UserError

SPLITS = ("train", "valid", "test")
ALL_BYTES = bytes(range(256))


@pytest.fixture
def source(tmp_path):
    """A folder of split files in three forms, with separators, and one file that is no text."""
    folder = tmp_path / "source"
    (folder / "train").mkdir(parents=True)
    with lzma.open(folder / "train-00.txt.xz", "wb") as file:
        file.write("Ein Käse\n\n  zwei \n<end>\nsecond\n<end>\n".encode())
    (folder / "train" / "more.txt").write_bytes(b"no newline at the end")
    with gzip.open(folder / "valid.txt.gz", "wb") as file:
        file.write(b"valid one\n<end>\nvalid two\n<end>\n")
    (folder / "test.txt").write_bytes(b"test\n" * 2000 + b"<end>\n")
    (folder / "index.tsv").write_bytes(b"not text")
    return folder


TEXTS = {
    "train": "no newline at the end\nEin Käse\n\n  zwei \nsecond\n".encode(),
    "valid": b"valid one\nvalid two\n",
    "test": b"test\n" * 2000,
}


def run(corpus, *arguments):
    """Run a script in this process."""
    return prepare_lm.main([corpus, *map(str, arguments)])


def run_script(corpus, *arguments, **options):
    """Run a script as users do, in a process of its own."""
    return subprocess.run(
        ["bash", SCRIPTS / f"prepare_{corpus}.sh", *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        **options,
    )


def items_of(dest, split):
    return list(indexed_dataset.make_dataset(str(dest / split), "mmap"))


def bytes_of(dest, split):
    """Decode a binarised split, from nothing but what is in the folder."""
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    return decode(dictionary[i] for item in items_of(dest, split) for i in item)


def record_of(dest):
    return json.loads((dest / "prepared.json").read_text())


# Bytes as symbols


def test_every_byte_has_a_symbol_and_comes_back():
    assert decode(encode(ALL_BYTES)) == ALL_BYTES
    assert encode("Hi <é>\n".encode()) == ["H", "i", "<20>", "<", "<C3>", "<A9>", ">", "<0A>"]
    assert len(set(byte_symbols())) == 256
    assert [byte_symbols()[byte] for byte in ALL_BYTES] == encode(ALL_BYTES)


def test_symbols_survive_the_dictionary_file_in_their_order(tmp_path):
    lm_binarize.byte_dictionary().save(str(tmp_path / "dict.txt"))
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    assert dictionary.symbols[dictionary.nspecial :] == byte_symbols()
    # The file that all byte-level checkpoints share: a change of one byte makes them useless.
    digest = sha256((tmp_path / "dict.txt").read_bytes()).hexdigest()
    assert digest == "1cab6dd68d16964229e474940a6379ce514abbb7ca5ffa1a7a683cb4ddc8cf52"


@pytest.mark.parametrize("symbol", ["</s>", "<unk>", "<0a>", "ab", " ", ""])
def test_decode_refuses_what_is_no_byte(symbol):
    with pytest.raises(ValueError, match=re.escape(f"{symbol!r} is no byte's symbol")):
        decode(["a", symbol])


def test_byte_symbols_do_not_need_fairseq():
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('b', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert module.encode(b'a') == ['a']\n"
        "assert not {'fairseq', 'torch', 'numpy'} & set(sys.modules)\n"
    )
    path = SCRIPTS.parent / "fairseq_clusterformer" / "data" / "bytes.py"
    subprocess.run([sys.executable, "-c", code, path], check=True)


# Any folder of text


def test_split_files_become_exactly_their_bytes(source, tmp_path, capsys):
    dest = tmp_path / "dest"
    assert run("text", source, dest, "--document-separator", "<end>") == 0
    assert "index.tsv" in capsys.readouterr().out
    assert {split: bytes_of(dest, split) for split in SPLITS} == TEXTS
    counts = record_of(dest)["splits"]
    for split, text in TEXTS.items():
        items = items_of(dest, split)
        assert counts[split]["tokens"] == counts[split]["bytes"] == len(text)
        assert {len(item) for item in items[:-1]} <= {BYTES_PER_ITEM}
    assert [counts[split]["documents"] for split in SPLITS] == [3, 2, 1]
    assert len(items_of(dest, "test")) == 3
    assert indexed_dataset.MMapIndexedDataset.Index(str(dest / "test.idx")).dtype == np.uint16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source"]


def test_loads_in_the_language_modeling_task(source, tmp_path):
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    dest = tmp_path / "dest"
    assert run("text", source, dest, "--document-separator", "<end>") == 0
    arguments = [str(dest), "--path=none", "--tokens-per-sample=16", "--sample-break-mode=none"]
    parsed = options.parse_args_and_arch(options.get_eval_lm_parser(), arguments)
    task = tasks.setup_task(convert_namespace_to_omegaconf(parsed).task)
    task.load_dataset("train")
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[i] for i in range(len(dataset))])
    # The batch is sorted by length and padded; ids tell the order.
    rows = {int(i): row for i, row in zip(batch["id"], batch["target"], strict=True)}
    indices = [int(i) for key in sorted(rows) for i in rows[key] if i != task.dictionary.pad()]
    assert decode(task.dictionary[i] for i in indices) == TEXTS["train"]
    assert batch["ntokens"] == len(TEXTS["train"])


def test_whole_documents_are_split_always_the_same(tmp_path):
    documents = [f"document {i}\n".encode() * (i + 1) for i in range(40)]
    for order, name in ((documents, "one"), (documents[::-1], "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "all.txt").write_bytes(b"##\n".join(order))
    arguments = ["--document-separator", "##", "--valid-fraction", "0.2", "--test-fraction", "0.1"]
    splits = []
    for name in ("one", "other"):
        assert run("text", tmp_path / name, tmp_path / f"{name}.dest", *arguments) == 0
        text = {split: bytes_of(tmp_path / f"{name}.dest", split) for split in SPLITS}
        splits.append(
            {
                split: {document for document in documents if document in text[split]}
                for split in SPLITS
            }
        )
        for split in SPLITS:
            assert len(text[split]) == sum(map(len, splits[-1][split]))
    assert splits[0] == splits[1]
    assert sum(map(len, splits[0].values())) == len(documents)
    total, most = sum(map(len, documents)), max(map(len, documents))
    assert 0.2 * total - most < sum(map(len, splits[0]["valid"])) <= 0.2 * total
    assert 0.1 * total - most < sum(map(len, splits[0]["test"])) <= 0.1 * total


@pytest.mark.parametrize("sizes", [(1, 1, 1000), (1000, 1, 1), (1, 1000, 1), (1000,) * 4])
def test_no_split_of_few_documents_is_empty(tmp_path, sizes):
    for i, size in enumerate(sizes):
        (tmp_path / f"{i}.txt").write_bytes(b"%d\n" % i * size)
    texts = sorted(tmp_path.iterdir())
    pieces = lm_text.by_document(texts, lm_text.Reader(), {"valid": 0.05, "test": 0.05})
    splits = [split for split, document in pieces if list(document)]
    assert [splits.count(split) for split in SPLITS] == [len(sizes) - 2, 1, 1]


def test_equal_documents_come_to_one_split(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"".join(b"%d\n#\n" % (i % 4) for i in range(100)))
    pieces = lm_text.by_document(
        [tmp_path / "a.txt"], lm_text.Reader(b"#"), {"valid": 0.2, "test": 0.2}
    )
    split_of = {}
    for split, document in pieces:
        assert split_of.setdefault(b"".join(document), split) == split
    assert sorted(split_of.values()) == ["test", "train", "train", "valid"]


def test_contiguous_keeps_the_order_and_cuts_at_line_ends(tmp_path):
    text = b"".join(b"line %d\n" % i for i in range(1000))
    (tmp_path / "page.odd").write_bytes(text)
    dest = tmp_path / "dest"
    assert run("text", tmp_path / "page.odd", dest, "--split", "contiguous") == 0
    parts = [bytes_of(dest, split) for split in SPLITS]
    assert b"".join(parts) == text
    assert all(part.endswith(b"\n") for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]


@pytest.mark.parametrize(("limit", "kept"), [(41, 41), (40, 33), (33, 33), (1000, 48)])
def test_train_bytes_keeps_whole_lines(source, tmp_path, limit, kept):
    arguments = "--document-separator", "<end>", "--train-bytes", limit
    assert run("text", source, tmp_path / "dest", *arguments) == 0
    assert bytes_of(tmp_path / "dest", "train") == TEXTS["train"][:kept]
    assert bytes_of(tmp_path / "dest", "test") == TEXTS["test"]


def test_any_bytes_are_kept_if_allowed(tmp_path):
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_bytes(ALL_BYTES + b"\n")
    dest = tmp_path / "dest"
    assert run("text", tmp_path, dest, "--bytes", "--allow-binary") == 1  # DEST is in SOURCE
    dest = tmp_path.parent / f"{tmp_path.name}.dest"
    assert run("text", tmp_path, dest, "--bytes", "--allow-binary") == 0
    assert bytes_of(dest, "valid") == ALL_BYTES + b"\n"


def test_sentencepiece_is_lossless_and_learns_from_train_alone(tmp_path):
    import sentencepiece

    folder, dest = tmp_path / "source", tmp_path / "dest"
    folder.mkdir()
    lines = [f"the  cat {i} sat on  the mat" for i in range(200)] + ["", "end "]
    unseen = ["☃ is in valid alone, ｆｕｌｌ width", "", "\ttab", "  blanks   kept ", " "]
    for split, text in zip(SPLITS, (lines, unseen, lines), strict=True):
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n")
    assert run("text", folder, dest, "--sentencepiece", 280) == 0
    model = sentencepiece.SentencePieceProcessor(model_file=str(dest / "sentencepiece.model"))
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    assert len(dictionary) == 280 + 1  # fairseq's <pad> comes to sentencepiece's <unk> <s> </s>
    items = items_of(dest, "valid")
    assert all(item[-1] == dictionary.eos() for item in items)
    assert not any(dictionary.unk() in item for item in items)
    assert [model.decode([dictionary[i] for i in item[:-1]]) for item in items] == unseen
    assert "☃" not in dictionary
    assert record_of(dest)["splits"]["valid"]["items"] == len(unseen)


# enwik8 and WikiText-103, made small


def make_zip(folder, members):
    """Write ``corpus.zip`` and return its description."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "corpus.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"corpus/{name}", content)
    return Archive(
        url=(folder / "corpus.zip").as_uri(),
        checksum="sha256:" + sha256((folder / "corpus.zip").read_bytes()).hexdigest(),
        members={name: "sha1:" + sha1(content).hexdigest() for name, content in members.items()},
    )


ENWIK8 = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8).tobytes()


@pytest.mark.parametrize("form", ["file", "zip", "download"])
def test_enwik8_is_cut_at_its_bytes(tmp_path, form):
    archive = make_zip(tmp_path / "zip", {"enwik8": ENWIK8})
    source = {"file": tmp_path, "zip": tmp_path / "zip", "download": None}[form]
    (tmp_path / "enwik8").write_bytes(ENWIK8)
    dest = tmp_path / "dest"
    lm_corpora.prepare_enwik8(dest, source, archive=archive, sizes=(9000, 600, 400))
    assert bytes_of(dest, "train") == ENWIK8[:9000]
    assert bytes_of(dest, "valid") == ENWIK8[9000:9600]
    assert bytes_of(dest, "test") == ENWIK8[9600:]
    assert not (tmp_path / "dest.partial").exists()


def test_wrong_enwik8_is_refused(tmp_path):
    archive = make_zip(tmp_path / "zip", {"enwik8": ENWIK8})
    (tmp_path / "enwik8").write_bytes(ENWIK8[:-1] + b"x")
    with pytest.raises(UserError, match="enwik8: sha1 of its 10,000 bytes is .* must be"):
        lm_corpora.prepare_enwik8(tmp_path / "dest", tmp_path, archive=archive)
    with pytest.raises(UserError, match="has 10,000 bytes, must have 10,001"):
        lm_corpora.prepare_enwik8(
            tmp_path / "dest", tmp_path / "zip", archive=archive, sizes=(10_000, 1, 0)
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enwik8", "zip"]


WIKITEXT = {
    "wiki.train.tokens": " \n = Käse = \n \n a b\u00a0b <unk> , a \n c\u2009d e f g h \n",
    "wiki.valid.tokens": " a unseen b \n\n",
    "wiki.test.tokens": "b c Käse",
}


def test_wikitext_is_what_fairseq_preprocess_makes(tmp_path):
    members = {name: text.encode() for name, text in WIKITEXT.items()}
    archive = make_zip(tmp_path / "zip", members)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    arguments = {"types": 13, "tokens": (20, 5, 4)}
    lm_corpora.prepare_wikitext103(ours, tmp_path / "zip", archive=archive, **arguments)
    for name, content in members.items():
        (tmp_path / name).write_bytes(content)
    preprocess = "import sys, fairseq_cli.preprocess as p; sys.exit(p.cli_main())"
    prefixes = [f"--{split}pref={tmp_path / f'wiki.{split}.tokens'}" for split in SPLITS]
    subprocess.run(
        [sys.executable, "-c", preprocess, "--only-source", *prefixes, "--destdir", theirs],
        check=True,
        capture_output=True,
    )
    for name in ["dict.txt", *(f"{split}.{end}" for split in SPLITS for end in ("bin", "idx"))]:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    with pytest.raises(UserError, match=r"types and tokens \[13, 20, 5, 4\], must be \[267735"):
        lm_corpora.prepare_wikitext103(tmp_path / "x", tmp_path / "zip", archive=archive)


class _Breaking(http.server.BaseHTTPRequestHandler):
    """Serves `content`, breaking off in the middle until asked to go on from there."""

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


@pytest.fixture
def server():
    handler = type("Handler", (_Breaking,), {"ranges": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        yield handler, f"http://127.0.0.1:{http_server.server_port}/corpus.zip"
        http_server.shutdown()


def test_broken_download_goes_on_where_it_was(tmp_path, server):
    handler, url = server
    archive = make_zip(tmp_path / "zip", {"enwik8": ENWIK8})
    handler.content = (tmp_path / "zip" / "corpus.zip").read_bytes()
    archive = Archive(url, archive.checksum, archive.members)
    dest, sizes = tmp_path / "dest", (9000, 600, 400)
    with pytest.raises(UserError, match=r"could not download http.* broken off .*--source DIR"):
        lm_corpora.prepare_enwik8(dest, archive=archive, sizes=sizes)
    assert not dest.exists()
    lm_corpora.prepare_enwik8(dest, archive=archive, sizes=sizes)
    assert handler.ranges == [0, len(handler.content) // 2]
    assert bytes_of(dest, "train") == ENWIK8[:9000]
    assert not (tmp_path / "dest.partial").exists()


def test_wrong_download_is_removed(tmp_path):
    archive = make_zip(tmp_path / "zip", {"enwik8": ENWIK8})
    archive = Archive(archive.url, "sha256:0", archive.members)
    with pytest.raises(UserError, match="must be 0 .*removed.*--source DIR"):
        lm_corpora.prepare_enwik8(tmp_path / "dest", archive=archive)
    assert [path.name for path in tmp_path.iterdir()] == ["zip"]


def test_no_network_is_told(tmp_path):
    archive = Archive("http://127.0.0.1:9/enwik8.zip", "sha256:0", {"enwik8": "sha1:0"})
    with pytest.raises(UserError, match=r"could not download .*refused.*; .* pass --source DIR"):
        lm_corpora.prepare_enwik8(tmp_path / "dest", archive=archive)
    assert not list(tmp_path.iterdir())


# Run again, and interruptions


def state_of(dest):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in dest.iterdir()}


def test_second_run_does_nothing_and_says_so(source, tmp_path, capsys):
    dest = tmp_path / "dest"
    dest.mkdir()
    arguments = (source, dest, "--document-separator", "<end>")
    assert run("text", *arguments) == 0
    before = state_of(dest)
    capsys.readouterr()
    assert run("text", *arguments) == 0
    assert f"{dest} is already prepared" in capsys.readouterr().out
    assert state_of(dest) == before
    assert run("text", *arguments, "--train-bytes", 100) == 1
    assert "prepared with train_bytes null, not 100" in capsys.readouterr().err
    (tmp_path / "dest.partial" / "download").mkdir(parents=True)  # as if killed at the very end
    (tmp_path / "dest.partial" / ".prepare_lm").touch()
    assert run("text", *arguments) == 0
    assert not (tmp_path / "dest.partial").exists()
    (dest / "valid.bin").write_bytes(b"")
    assert run("text", *arguments) == 1
    assert "valid.bin is no longer as prepared" in capsys.readouterr().err


def test_failure_in_the_middle_leaves_nothing(source, tmp_path, monkeypatch):
    dest = tmp_path / "dest"
    with monkeypatch.context() as patch:
        patch.setattr(ByteCoding, "items", lambda *_: iter([None]))
        with pytest.raises(AttributeError):
            run("text", source, dest)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert run("text", source, dest) == 0


def test_killed_run_leaves_no_folder_and_the_next_completes(source, tmp_path):
    dest, work = tmp_path / "dest", tmp_path / "dest.partial"
    command = [sys.executable, SCRIPTS / "prepare_lm.py", "text", source, dest]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not (work / "train.txt").exists():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert not dest.exists()
    assert (work / "out").exists()
    assert run("text", source, dest) == 0
    assert bytes_of(dest, "test") == (source / "test.txt").read_bytes()
    assert not work.exists()


def test_two_runs_at_once_do_not_mix(source, tmp_path, monkeypatch, capsys):
    statuses = []
    original = lm_text.write_splits

    def write_splits(*arguments, **options):
        if not statuses:
            statuses.append(None)
            statuses[0] = run("text", source, tmp_path / "dest")
        return original(*arguments, **options)

    monkeypatch.setattr(lm_text, "write_splits", write_splits)
    assert run("text", source, tmp_path / "dest") == 0
    assert statuses == [1]
    assert "another run is at work" in capsys.readouterr().err


# Mistakes: one last line that names the option, the value and what is allowed

MISTAKES = {
    "missing folder": ("nowhere {dest}", r"SOURCE .*nowhere: no such file or folder"),
    "empty folder": ("empty {dest}", r"SOURCE .*empty: no text file, no file at all; allowed"),
    "no text": ("notext {dest}", r"SOURCE .*notext: no text file, only a\.png; allowed are"),
    "empty text": ("blank {dest}", r"SOURCE: no text for train; allowed"),
    "one document": ("one {dest}", r"--split documents: 1 different .* --document-separator"),
    "no separator": (
        "good {dest} --document-separator ##",
        r"--document-separator '##': no line of SOURCE .*good is this; allowed is a line",
    ),
    "NUL": ("nul {dest}", r"a\.txt: byte 0x00 at offset 5 is not UTF-8 .*--allow-binary"),
    "Latin-1": ("latin {dest}", r"a\.txt: byte 0xE9 at offset 9 is not UTF-8 .*allowed"),
    "broken xz": ("broken {dest}", r"a\.txt\.xz: cannot be read after \d+ bytes"),
    "cut gz": ("cut {dest}", r"a\.txt\.gz: cannot be read after \d+ bytes"),
    "two of three": ("two {dest}", r"files for train and valid but none for test; allowed"),
    "no split files": ("one {dest} --split files", r"--split files: .* train, valid or test"),
    "DEST taken": ("good one", r"DEST .*one: is something else; allowed"),
    "DEST a file": ("good one/a.txt", r"DEST .*a\.txt: is something else; allowed"),
    "DEST in SOURCE": ("good good/dest", r"DEST .*dest: is in SOURCE"),
    "option": ("good {dest} --byts", r"unrecognized arguments: --byts; .*--bytes"),
    "abbreviation": ("good {dest} --sentence 300", r"unrecognized arguments: --sentence 300"),
    "DEST too long": ("good {dest}" + "x" * 300, r".*File name too long"),
    "no DEST": ("good", r"required: DEST; usage: prepare_text.sh"),
    "split": ("good {dest} --split half", r"--split: .*'half' .*choose from .*documents"),
    "fraction": ("good {dest} --valid-fraction 1", r"--valid-fraction: '1'; allowed is .* 0 and"),
    "fractions": (
        "good {dest} --valid-fraction .5 --test-fraction .5",
        r"--valid-fraction 0\.5 --test-fraction 0\.5: leave nothing for train; allowed",
    ),
    "bytes": ("good {dest} --train-bytes -1", r"--train-bytes: '-1'; allowed: a whole number"),
    "short": ("good {dest} --train-bytes 2", r"--train-bytes 2: the first line alone is longer"),
    "both": ("good {dest} --bytes --sentencepiece 9", r"--bytes --sentencepiece: allowed is one"),
    "vocab": ("good {dest} --sentencepiece many", r"--sentencepiece: 'many'; allowed: a whole"),
    "small": (
        "good {dest} --sentencepiece 10",
        r"--sentencepiece 10: allowed is \d+ or more for this text",
    ),
    "large": ("good {dest} --sentencepiece 5000", r"--sentencepiece 5000: allowed is at most \d+"),
    "binary": (
        "good {dest} --sentencepiece 300 --allow-binary",
        r"--allow-binary: is allowed with --bytes only",
    ),
}


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """Folders to go wrong with."""
    folder = tmp_path_factory.mktemp("mistaken")
    files = {
        "notext/a.png": b"x",
        "blank/train.txt": b"",
        "blank/valid.txt": b"v\n",
        "blank/test.txt": b"t\n",
        "one/a.txt": b"the only document\n",
        "nul/a.txt": b"good\n\0",
        "latin/a.txt": "first\ncafé\n".encode("latin-1"),
        "broken/a.txt.xz": b"this is no xz file",
        "cut/a.txt.gz": gzip.compress(b"text\n" * 100)[:20],
        "two/train.txt": b"t\n",
        "two/valid.txt": b"v\n",
        **{f"good/{split}.txt": b"some text\nand more of it\n" * 20 for split in SPLITS},
    }
    (folder / "empty").mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_in_the_last_line(mistaken, tmp_path, monkeypatch, capsys, mistake):
    arguments, message = MISTAKES[mistake]
    monkeypatch.chdir(mistaken)
    before = sorted(mistaken.rglob("*"))
    try:
        status = run("text", *arguments.format(dest=tmp_path / "dest").split())
    except SystemExit as error:
        status = error.code
    errors = capsys.readouterr().err
    assert status
    assert re.match(f"prepare_text.sh: error: .*{message}", errors.splitlines()[-1]), errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
    assert sorted(mistaken.rglob("*")) == before


@pytest.mark.parametrize("corpus", ["enwik8", "wikitext103"])
def test_mistaken_source_is_told(tmp_path, monkeypatch, capsys, corpus):
    monkeypatch.chdir(tmp_path)
    assert run(corpus, "--source", "nowhere") == 1
    assert re.search("--source nowhere: no such folder; allowed is .*zip", capsys.readouterr().err)
    (tmp_path / "enwik8").write_bytes(b"x")
    (tmp_path / "wiki.train.tokens").write_bytes(b"x")
    (tmp_path / "wiki.valid.tokens").write_bytes(b"x")
    (tmp_path / "wiki.test.tokens").write_bytes(b"x")
    assert run(corpus, "--source", ".") == 1
    assert re.search(r"sha1 of its 1 bytes is \w+, must be \w+$", capsys.readouterr().err.strip())
    assert not (tmp_path / "data-bin" / corpus).exists()


# The scripts themselves


def test_script_works_from_anywhere_and_shows_no_traceback(source, tmp_path):
    done = run_script("text", "source", "out/dest", "--bytes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout + done.stderr  # no progress bars where nobody looks
    assert bytes_of(tmp_path / "out" / "dest", "test").endswith(b"<end>\n")
    failed = run_script("text", "source", tmp_path, cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert run_script("enwik8", "--help", cwd=tmp_path).stdout.startswith("usage: prepare_enwik8")
    assert run_script("wikitext103", "--source", "no", cwd=tmp_path).returncode == 1


def test_python_that_cannot_do_it_is_named(source, tmp_path):
    bare = tmp_path / "bare"  # a Python that finds no packages, fairseq least of all
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    command = ["bash", SCRIPTS / "prepare_text.sh", source, tmp_path / "dest"]
    for python, message in ((bare, r"cannot import \w+; set PYTHON"), ("no", "PYTHON no: is no")):
        done = subprocess.run(
            command, env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert re.search(message, done.stderr), done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "dest").exists()


def test_scripts_have_unix_line_ends_and_stop_at_errors():
    for script in SCRIPTS.glob("prepare_*.sh"):
        content = script.read_bytes()
        assert b"\r" not in content
        assert b"set -euo pipefail" in content
