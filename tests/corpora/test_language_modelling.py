"""`clusterformer prepare lm`: every split exact, every mistake reported in one line."""

import gzip
import re
import tracemalloc
from hashlib import sha1, sha256

import numpy as np
import pytest
from fairseq.data import Dictionary, indexed_dataset
from tokenizers import Tokenizer

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.corpora.files import Archive
from fairseq_clusterformer.corpora.texts import KNOWN, by_document, documents
from fairseq_clusterformer.data import coding, subwords
from fairseq_clusterformer.data.characters import byte_symbols
from fairseq_clusterformer.data.coding import BYTES_PER_ITEM, TextCoding
from tests.corpora.commands import SPLITS, one_line, pack, record_of, run, write, write_splits
from tests.data.subword_models import LOSSLESS, write_gpt2, write_sentencepiece
from tests.data.tokenizers import made


def items_of(dest, split):
    return list(indexed_dataset.make_dataset(str(dest / split), "mmap"))


def symbols_of(dest, split):
    """The tokens of a binarised split, from nothing but what is in the folder."""
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    return [[dictionary[i] for i in item] for item in items_of(dest, split)]


def bytes_of(dest, split):
    found = (symbol for item in symbols_of(dest, split) for symbol in item)
    return bytes(map(byte_symbols().index, found))


# Any folder of text

#: files of splits in three forms, with separators, and two of no split
SOURCE = {
    "train-00.txt.xz": "Ein Käse\n\n  zwei \n<end>\nsecond\n<end>\n",
    "train/more.rst": "no newline at the end",
    "valid.txt.gz": "valid one\n<end>\nvalid two\n<end>\n",
    "test.md": "test\n" * 2000 + "<end>\n",
    "index.tsv": "text, but of no split",
    "picture.png": b"\x89PNG\0",
    ".hidden": b"\0",
}
TEXTS = {
    "train": "no newline at the end\nEin Käse\n\n  zwei \nsecond\n".encode(),
    "valid": b"valid one\nvalid two\n",
    "test": b"test\n" * 2000,
}


def test_split_files_become_exactly_their_bytes(tmp_path, capsys):
    """Their dictionary is that of all checkpoints."""
    source, dest = tmp_path / "source", tmp_path / "dest"
    for name, content in SOURCE.items():
        write(source / name, content)
    assert run("prepare lm text", source, dest, "--document-separator <end>") == 0
    printed = capsys.readouterr()
    assert "\r" not in printed.out + printed.err  # no progress bars where nobody looks
    assert printed.out.startswith(
        "taken: 4 files, split by files; skipped: picture.png, index.tsv\n"
    )
    digest = sha256((dest / "dict.txt").read_bytes()).hexdigest()
    assert digest == "1cab6dd68d16964229e474940a6379ce514abbb7ca5ffa1a7a683cb4ddc8cf52"
    counts = record_of(dest)["splits"]
    for split, text in TEXTS.items():
        assert bytes_of(dest, split) == text
        assert counts[split]["tokens"] == counts[split]["bytes"] == len(text)
        assert {len(item) for item in items_of(dest, split)[:-1]} <= {BYTES_PER_ITEM}
    assert [counts[split]["documents"] for split in SPLITS] == [3, 2, 1]
    assert len(items_of(dest, "test")) == 3
    assert indexed_dataset.MMapIndexedDataset.Index(str(dest / "test.idx")).dtype == np.uint16
    assert run("prepare lm text", source, dest, "--document-separator <end>") == 0
    assert capsys.readouterr().out == f"{dest} is already prepared\n"
    assert run("prepare lm text", source, dest) == 1
    assert "prepared otherwise (document_separator" in capsys.readouterr().err


TEXT = "The café is old.  It's  good!\n\nTowns: 東京\n##\nCakes of 1901.\n##\n"


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("kind", ["gpt2-bpe", "sentencepiece-model", "tokenizer"])
def test_an_existing_model(kind, sentences, tmp_path):
    """It is kept; GPT-2's has a dictionary of its own. Each sentence ends in ``</s>``."""
    texts, dest = write_splits(tmp_path / "texts", TEXT), tmp_path / "dest"
    more = " --sentences" * sentences
    if kind == "gpt2-bpe":
        model = write_gpt2(tmp_path / "gpt2")
        words = binarize.symbol_dictionary(reversed(subwords.load(model).symbols))
        words.save(str(tmp_path / "dict.txt"))
        more += f" --dict {tmp_path / 'dict.txt'}"
    elif kind == "tokenizer":
        model = made("bytes", tmp_path / "tokenizer.json")
    else:
        model = write_sentencepiece(tmp_path / "sentencepiece.model", **LOSSLESS)
    options = f"--{kind} {model} --document-separator ##{more}"
    assert run("prepare lm text", texts, dest, options) == 0
    read, items = TextCoding.from_folder(dest), items_of(dest, "train")
    if kind == "gpt2-bpe":
        assert read.dictionary.symbols == words.symbols
    if sentences:
        assert all(item[-1] == read.dictionary.eos() for item in items)
        lines = ["The café is old.", "It's  good!", "Towns: 東京", "", "Cakes of 1901.", ""]
        assert [read.decode(item).removesuffix("\n") for item in items] == lines
    else:
        assert "".join(map(read.decode, items)) == TEXT.replace("##\n", "")
    for file in [model] if model.is_file() else model.iterdir():
        assert file.name in record_of(dest)["recipe"]["subwords"]
        if kind == "sentencepiece-model":
            assert (dest / "tokenizer.json").is_file()
        else:
            assert (dest / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dict {dict}", "with --gpt2-bpe, --sentencepiece-model or --tokenizer only"),
        ("--gpt2-bpe {gpt2} --dict none", "no such file; allowed: a dictionary of fairseq"),
        ("--gpt2-bpe {gpt2} --dict {dict}", "dictionary that belongs to the model of subwords"),
        ("--tokenizer {gpt2}/encoder.json", "encoder.json: is no tokenizer.json"),
        ("--tokenizer {dict}", "dict.txt: its name says something else; allowed: a tokenizer.j"),
        ("--sentencepiece-model none", "no such file; allowed: a sentencepiece model"),
    ],
)
def test_subwords_that_do_not_fit(options, message, tmp_path, capsys):
    texts, words = write_splits(tmp_path / "texts", TEXT), write(tmp_path / "dict.txt", "0 1\n")
    line = options.format(gpt2=write_gpt2(tmp_path / "gpt2"), dict=words)
    assert run("prepare lm text", texts, tmp_path / "dest", line) == 1
    assert message in one_line(capsys)
    assert not (tmp_path / "dest").exists()


def test_whole_documents_are_split_always_the_same(tmp_path):
    documents = [f"document {i}\n".encode() * (i + 1) for i in range(40)]
    splits = []
    for order, name in ((documents, "one"), (documents[::-1], "other")):
        write(tmp_path / name / "all.txt", b"##\n".join(order))
        dest = tmp_path / f"{name}.dest"
        options = "--document-separator ## --valid-fraction 0.2 --test-fraction 0.1"
        assert run("prepare lm text", tmp_path / name, dest, options) == 0
        text = {split: bytes_of(dest, split) for split in SPLITS}
        splits.append({split: {d for d in documents if d in text[split]} for split in SPLITS})
        for split in SPLITS:
            assert len(text[split]) == sum(map(len, splits[-1][split]))
    assert splits[0] == splits[1]
    assert sum(map(len, splits[0].values())) == len(documents)
    total, most = sum(map(len, documents)), max(map(len, documents))
    assert 0.2 * total - most < sum(map(len, splits[0]["valid"])) <= 0.2 * total
    assert 0.1 * total - most < sum(map(len, splits[0]["test"])) <= 0.1 * total


@pytest.mark.parametrize(
    ("contents", "fraction", "found"),
    [
        *((sizes, 0.05, sorted(sizes)) for sizes in ((1, 2, 1000), (1000, 1, 2), (1, 1000, 2, 3))),
        ((1, 1, 1), 0.9, [1, 1, 1]),  # whatever the fractions
    ],
)
def test_few_documents_leave_the_longest_to_train(tmp_path, contents, fraction, found):
    texts = [write(tmp_path / f"{i}.txt", f"{i}\n" * n) for i, n in enumerate(contents)]
    parts = by_document(lambda: documents(texts), dict.fromkeys(("valid", "test"), fraction))
    sizes = sorted((split, len(b"".join(lines)) // 2) for split, lines in parts)
    assert sizes == sorted(zip(["valid", "test", "train", "train"], found, strict=False))


def test_equal_documents_share_a_split(tmp_path):
    text = write(tmp_path / "a.txt", "".join(f"{i % 4}\n#\n" for i in range(100)))
    fractions = {"valid": 0.2, "test": 0.2}
    found = [(s, *lines) for s, lines in by_document(lambda: documents([text], "#"), fractions)]
    assert sorted(split for split, _ in set(found)) == ["test", "train", "train", "valid"]


@pytest.mark.parametrize("files", [["page.odd"], [f"in/{i}.txt" for i in range(3)]])
def test_few_files_are_cut_at_line_ends(tmp_path, files):
    """Whole, each of three would be a third of the text, and no twentieth."""
    text = b""
    for name in files:
        text += (part := b"".join(b"line %d of %s\n" % (i, name.encode()) for i in range(1000)))
        write(tmp_path / name, part)
    source = tmp_path / files[0].partition("/")[0]
    assert run("prepare lm text", source, tmp_path / "dest") == 0
    parts = [bytes_of(tmp_path / "dest", split) for split in SPLITS]
    assert b"".join(parts) == text
    assert all(part.endswith(b"\n") for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]


@pytest.mark.parametrize(
    ("content", "option", "items"),
    [
        # a carriage return alone is a character; with a newline it ends a line
        (b"one\rtwo\r\nthree\n", "--words", ["one two </s>", "three </s>"]),
        (b"a <pad> </s> <s>\n<unk> b\n", "--words", ["a <unk> <unk> <unk> </s>", "<unk> b </s>"]),
        # a mark of byte order is no text in front, and some further on
        ("\ufeffa\n\ufeffb\n".encode(), "--bytes", ["a <0A> <EF> <BB> <BF> b <0A>"]),
    ],
)
def test_tokens_of_lines(content, option, items, tmp_path):
    write_splits(tmp_path / "source", content)
    assert run("prepare lm text", tmp_path / "source", tmp_path / "dest", option) == 0
    for split in SPLITS:
        assert [" ".join(item) for item in symbols_of(tmp_path / "dest", split)] == items


def test_words_are_those_of_train(tmp_path):
    texts = "the  cat sat\n\nthe end\n", "the dog sat\n", "end"
    for split, text in zip(SPLITS, texts, strict=True):
        write(tmp_path / "source" / f"{split}.txt", text)
    dest = tmp_path / "dest"
    assert run("prepare lm text", tmp_path / "source", dest, "--words") == 0
    found = [" ".join(item) for split in SPLITS for item in symbols_of(dest, split)]
    train = ["the cat sat </s>", "</s>", "the end </s>"]
    assert found == [*train, "the <unk> sat </s>", "end </s>"]


def test_sentencepiece_is_lossless_and_learns_from_train_alone(tmp_path):
    folder, dest = tmp_path / "source", tmp_path / "dest"
    lines = [f"the  cat {i} sat on  the mat" for i in range(200)] + ["", "end "]
    unseen = ["☃ is in valid alone, ｆｕｌｌ width", "", "\ttab", "  blanks   kept ", " "]
    for split, text in zip(SPLITS, (lines, unseen, lines), strict=True):
        write(folder / f"{split}.txt", "\n".join(text) + "\n")
    assert run("prepare lm text", folder, dest, "--sentencepiece 280") == 0
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    assert len(dictionary) == 280 + 1  # fairseq's <pad> comes to sentencepiece's <unk> <s> </s>
    items = symbols_of(dest, "valid")
    assert all(item[-1] == "</s>" and "<unk>" not in item for item in items)
    model = Tokenizer.from_file(str(dest / "tokenizer.json"))
    ids = [[model.token_to_id(token) for token in ("</s>", *item[:-1])] for item in items]
    assert list(map(model.decode, ids)) == unseen
    assert model.get_vocab() == dictionary.indices
    assert "☃" not in dictionary


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    """Of each item, its length and its place are held: 12 bytes."""
    monkeypatch.setattr(coding, "_BLOCK", 10_000)
    monkeypatch.setattr(coding.ByteCoding, "_BLOCK", 4 * BYTES_PER_ITEM)
    write_splits(tmp_path / "text", "a b\n")

    def peak(way: str, line: str, lines: int) -> int:
        write(tmp_path / "text" / "train.txt", line * lines)
        tracemalloc.start()
        dest = tmp_path / f"{way}{lines}"
        assert run("prepare lm text", tmp_path / "text", dest, way, "--workers 1") == 0
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    for way, line in (("--bytes", f"{'text ' * 20}\n"), ("--words", "a b\n")):
        peak(way, line, 1)  # what is imported once
        few, many = peak(way, line, 5_000), peak(way, line, 30_000)
        assert many - few < 24 * 25_000


# enwik8 and WikiText-103, made small


def small(monkeypatch, folder, name, members, **more):
    """Let a known corpus consist of other files, and write its archive."""
    path = pack(folder / "corpus.zip", {f"corpus/{name}": c for name, c in members.items()})
    sums = {name: "sha1:" + sha1(content).hexdigest() for name, content in members.items()}
    archive = Archive(path.as_uri(), "sha256:" + sha256(path.read_bytes()).hexdigest(), sums)
    monkeypatch.setitem(KNOWN, name, KNOWN[name]._replace(archive=archive, **more))
    return folder


@pytest.mark.parametrize("form", ["zip", "download"])
def test_enwik8_is_cut_at_its_bytes(tmp_path, monkeypatch, form):
    content = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8).tobytes()
    folder = small(monkeypatch, tmp_path / "zip", "enwik8", {"enwik8": content}, sizes=(9000, 600))
    dest = tmp_path / "dest"
    source = ("--source", folder) if form == "zip" else ()
    assert run("prepare lm enwik8", dest, *source) == 0
    found = [bytes_of(dest, split) for split in SPLITS]
    assert found == [content[:9000], content[9000:9600], content[9600:]]


def test_wikitext_is_what_fairseq_preprocess_makes(tmp_path, monkeypatch):
    from fairseq import options
    from fairseq_cli import preprocess

    texts = {
        "wiki.train.tokens": " \n = Käse = \n \n a b\u00a0b <unk> , a \n c\u2009d e f g h \n",
        "wiki.valid.tokens": " a unseen b \n\n",
        "wiki.test.tokens": "b c Käse",
    }
    members = {write(tmp_path / name, text).name: text.encode() for name, text in texts.items()}
    folder = small(monkeypatch, tmp_path / "zip", "wikitext103", members)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert run("prepare lm wikitext103", ours, "--source", folder) == 0
    prefixes = [f"--{split}pref={tmp_path / f'wiki.{split}.tokens'}" for split in SPLITS]
    arguments = ["--only-source", *prefixes, "--destdir", str(theirs)]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    for name in ["dict.txt", *(f"{split}.{end}" for split in SPLITS for end in ("bin", "idx"))]:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


# Mistakes: one line that names the option, the value and what is allowed

MISTAKES = {
    "nowhere {dest}": r"SOURCE is .*nowhere: no such file; allowed: a folder",
    "empty {dest}": r"SOURCE is .*empty: no file at all; allowed",
    "notext {dest}": r"SOURCE is .*notext: no text file, only a\.pdf, b\.png; allowed",
    "few {dest}": r"SOURCE has no text for valid; allowed: .* a larger --valid-fr",
    "equal {dest} --document-separator ##": r"documents of SOURCE: 1; allowed: 3 different ones",
    "good {dest} --document-separator ##": r"--document-separator is ##: no such line in ",
    "broken {dest}": r"a\.txt\.xz: cannot be read after line 0",
    "cut {dest}": r"a\.txt\.gz: cannot be read after line \d+",
    "two {dest}": r"SOURCE is .*two: no file is named test; allowed: files of all three",
    "good good/dest": r"DEST is .*dest: lies in SOURCE",
    "good {dest} --valid-fraction .5 --test-fraction .5": r"--test-fraction is 0\.5: .*; allowed",
    "good {dest} --sentences": r"--sentences is given; allowed: together with subwords or --words",
    "good {dest} --sentencepiece 10": r"--sentencepiece is 10: .* vs \d+\. Increase",
    "good {dest} --sentencepiece 5000": r"--sentencepiece is 5000: .* a value <= \d+; allowed: ",
}


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """Folders to go wrong with."""
    folder = tmp_path_factory.mktemp("mistaken")
    files = {
        **{"notext/a.pdf": b"%PDF-1.4", "notext/b.png": b"\0", "few/a.txt": b"line\n" * 3},
        "equal/a.txt": b"the only document\n##\n" * 3,
        **{"two/train.txt": b"t\n", "two/valid.txt": b"v\n", "broken/a.txt.xz": b""},
        "cut/a.txt.gz": b"",
        **{f"good/{split}.txt": b"some text\nand more of it\n" * 20 for split in SPLITS},
    }
    for name, content in files.items():
        write(folder / name, content)
    (folder / "broken/a.txt.xz").write_bytes(b"no xz")
    (folder / "cut/a.txt.gz").write_bytes(gzip.compress(b"text\n" * 100)[:20])
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_in_one_line(mistaken, tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(mistaken)
    before = sorted(mistaken.rglob("*"))
    assert run("prepare lm text", mistake.format(dest=tmp_path / "dest"))
    line = one_line(capsys)
    told = f"clusterformer prepare lm( text)?: error: .*{MISTAKES[mistake]}"
    assert re.match(told, line), line
    assert not list(tmp_path.iterdir())
    assert sorted(mistaken.rglob("*")) == before
