"""Labelled texts of one's own: every example accounted for, splits disjoint, nothing half-made."""

import json
from collections import Counter
from itertools import product

import pytest
from fairseq.data import Dictionary, indexed_dataset
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from classification import prepare as known
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.data.subwords import Subwords
from tests.corpora.commands import SPLITS, one_line, run, write
from tests.data.tokenizers import made


def run_own(source, dest, *options):
    return run("prepare classification text", source, dest, *map(str, options))


def facts_of(folder):
    return json.loads((folder / "data.json").read_text())


def examples_of(folder, split):
    """Return (class, text, text...) of a split, as fairseq's task reads class and texts."""
    facts, fixed = facts_of(folder), {"classification_head_name": "head", "no_shuffle": True}
    how = {"num_classes": len(facts["classes"]), "regression_target": False, "seed": 1, **fixed}
    task = SentencePredictionTask.setup_task(SentencePredictionConfig(data=str(folder), **how))
    task.load_dataset(split)
    loaded = task.dataset(split)
    columns = [[facts["classes"][loaded[i]["target"]] for i in range(len(loaded))]]
    for path in sorted(folder.glob("input*")):
        items = indexed_dataset.make_dataset(str(path / split), "mmap")
        assert all(item[-1] == task.dictionary.eos() for item in items)
        columns.append([task.dictionary.string(item) for item in items])
    counts = {name: columns[0].count(name) for name in facts["classes"]}
    assert facts["splits"][split].items() >= {"examples": len(loaded), "classes": counts}.items()
    return list(zip(*columns, strict=True))


# Own texts: label, text and the second text of a pair, in turn of three labels
OWN = [("abc"[i % 3], f"Text {i}, of {'abc'[i % 3]}.", f"Second {i}") for i in range(60)]


def table(width, header="", delimiter="\t"):
    quote = '"' if delimiter == "," else ""
    rows = (delimiter.join(f"{quote}{cell}{quote}" for cell in row[:width]) for row in OWN)
    return "\n".join([*filter(None, [header]), *rows]) + "\n"


def objects(*names):
    rows = (dict(zip(names, row, strict=False)) | {"x": 1} for row in OWN)
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "options", "inputs"),
    [
        ("a.tsv", table(2), (), 1),
        ("a.txt.gz", table(3), (), 2),
        ("a.csv", table(3, "y,q,a", ","), ("--label-field=y", "--text-fields=q,a"), 2),
        ("a.csv", table(3, "label,text,id", ","), (), 1),
        ("a.jsonl", objects("label", "text1", "text2"), (), 2),
        ("a.jsonl", objects("y", "q"), ("--label-field", "y", "--text-fields", "q"), 1),
        ("a.data", "".join(f"{a} {b}\n" for a, b, _ in OWN), (), 1),
    ],
)
def test_own_file_is_divided(tmp_path, name, content, options, inputs):
    """Into shares of each label; equal texts come to one split."""
    assert run_own(write(tmp_path / name, content), tmp_path / "dest", *options) == 0
    for split, number in (("train", 48), ("valid", 6), ("test", 6)):
        examples = examples_of(tmp_path / "dest", split)
        assert Counter(row[0] for row in examples) == dict.fromkeys("abc", number // 3)
        assert {len(row) for row in examples} == {1 + inputs}
    for label, text, *more in examples_of(tmp_path / "dest", "train"):
        number = text.split()[1]
        assert text == f"text {number} , of {label} ."
        assert more == [f"second {number}"] * (inputs - 1)
    splits = facts_of(tmp_path / "dest")["splits"]
    assert splits["valid"]["also in train"] == splits["test"]["also in train"] == 0
    assert (tmp_path / "dest" / "label" / "dict.txt").read_text().split() == list("a1b1c1")


@pytest.mark.parametrize("splits", [("train", "test"), ("",)])
def test_folder_of_reviews(tmp_path, splits, capsys):
    """Equal texts, here three of each, come to one split; DEST is not among what is read."""
    for split, label, i in product(splits, ("pos", "neg"), range(30)):
        text = f"A {label} film,\n\nthe {i % 10}th.\n"
        write(tmp_path / "source" / split / label / f"{i}.txt", text)
    write(tmp_path / "source" / "README", "what it is")
    words = tmp_path / "source", tmp_path / "dest", "--valid-fraction", 0.2
    assert run_own(*words) == 0
    facts = facts_of(tmp_path / "dest")["splits"]
    assert sum(each["examples"] for each in facts.values()) == 60 * len(splits)
    assert facts["valid"]["also in train"] == 0 < facts["valid"]["examples"] < 24
    assert facts["test"]["also in train"] == 0 or splits[0]
    assert examples_of(tmp_path / "dest", "train")[0][1].startswith("a neg film , the")
    is_read = splits == ("",)  # and so is every folder in it
    assert run_own(tmp_path / "source", tmp_path / "source" / "dest") == is_read
    assert not is_read or f"lies in {tmp_path / 'source'}" in one_line(capsys)


def test_own_files_of_each_split_and_no_test(tmp_path, capsys):
    for name in ("train.tsv", "my.dev.tsv"):
        write(tmp_path / "source" / name, table(2))
    write(tmp_path / "source" / "notes.txt", "what it is")
    assert run_own(tmp_path / "source", tmp_path / "dest", "--vocabulary-size", 20) == 0
    assert "passed over, in no split: notes.txt" in capsys.readouterr().err
    assert facts_of(tmp_path / "dest")["splits"].keys() == {"train", "valid"}
    assert facts_of(tmp_path / "dest")["vocabulary"]["size"] == 20
    assert len(examples_of(tmp_path / "dest", "valid")) == 60
    counts = Dictionary.load(str(tmp_path / "dest" / "input0" / "dict.txt")).count[4:]
    words = tmp_path / "source", tmp_path / "often", "--min-count", counts[3]
    assert run_own(*words) == 0
    often = Dictionary.load(str(tmp_path / "often" / "input0" / "dict.txt")).count[4:]
    assert often == [count for count in counts if count >= counts[3]] != counts


TABLE = "".join(f"good\tx{i}\nbad\ty{i}\n" for i in range(30))
OWN_MISTAKES = {  # what is said of a file: its name, its content, and options
    "line 2: 1 columns, ['x']; allowed: 2 columns (lab": ("a.tsv", "x\ty\nx"),
    "a.tsv: line 2: the label is ''; allowed: a label but <s>": ("a.tsv", "x\ty\n\ty"),
    "a.tsv: line 2: the label is '<pad>'": ("a.tsv", "x\ty\n<pad>\ty"),
    "9 examples, labels: x; allowed: two labels or more": ("a.tsv", "x\ty\n" * 9),
    "9 labels in 9 examples, such as": ("a.tsv", "".join(f"{i}\ty\n" for i in range(9))),
    "4 examples are too few to draw test from": ("a.tsv", "a\tx\nb\ty\n" * 2),
    "line 2: {'a': '1'": ("a.csv", "a,b\n1,2", "--label-field=y"),
    "no other line has the label 'mo": ("a.csv", "mood,words\n" + TABLE.replace("\t", ",")),
    r"a.jsonl: line 1: '\ud83d' is half a": ("a.jsonl", '{"label": "a", "text": "\\ud83d"}'),
    "a.jsonl: line 1: '[[[[": ("a.jsonl", "[" * 100_000),
    "line 1: {'label': None, 'text'": ("a.jsonl", '{"label": null, "text": "x"}'),
    "a.tsv: line 1: byte 0xE9 ": ("a.tsv", b"x\t\xe9"),
    "--text-fields is a,b,c; allowed": ("a.tsv", "a\tx\n", "--text-fields=a,b,c"),
    "no word of train is left, with --min-count 99": ("a.tsv", TABLE, "--min-count=99"),
    "--vocabulary-size is 4: no word": ("a.tsv", TABLE, "--vocabulary-size=4"),
}


@pytest.mark.parametrize("message", OWN_MISTAKES)
def test_mistakes_in_own_files(tmp_path, capsys, message):
    name, content, *options = OWN_MISTAKES[message]
    assert run_own(write(tmp_path / name, content), tmp_path / "dest", *options)
    assert message in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folds_are_stratified_and_cover_everything(tmp_path):
    """Each has the words of its train; what is in train too is counted."""
    rows = [("0", f"café w{i} is bad .") for i in range(60)]
    rows += [("1", "the same")] * 40
    text = "".join(f"{label} {text}\n" for label, text in rows)
    write(tmp_path / "source" / "rt-polarity.all", text, "latin-1")
    words = ["mr", f"{tmp_path}/dest", "--source", f"{tmp_path}/source"]
    assert program(known.NAME, known.main, words) == 0
    tested, doubled = [], 0
    for k in range(10):
        folder = tmp_path / "dest" / "mr" / f"fold{k}"
        by_split = {split: examples_of(folder, split) for split in SPLITS}
        for split, each in (("train", (48, 32)), ("valid", (6, 4)), ("test", (6, 4))):
            count = Counter(label for label, _ in by_split[split])
            assert (count["0"], count["1"]) == each
        words = {word for _, text in by_split["train"] for word in text.split()}
        assert facts_of(folder)["vocabulary"] == {"size": 4 + len(words)}
        assert "<unk>" not in words
        tested += by_split["test"]
        doubled += facts_of(folder)["splits"]["test"]["also in train"]
    assert Counter(label for label, _ in tested) == {"0": 60, "1": 40}
    assert sum("<unk>" in text for _, text in tested) == 60
    assert doubled == 40


def test_a_tokenizer_says_the_words(tmp_path, capsys):
    """Of each split, whatever train holds; the file goes along."""
    pairs = product(("A lake", "a", "and", "Fish", "cafés,"), repeat=2)
    rows = [f"{i % 2}\t{' '.join(pair)}, a café and a fish\n" for i, pair in enumerate(pairs)]
    source, dest = write(tmp_path / "rows.tsv", "".join(rows)), tmp_path / "dest"
    tokenizer = made("wordpiece", tmp_path / "tokenizer.json")
    words = (source, dest, "--tokenizer", tokenizer, "--max-length", "6")
    assert run_own(*words) == 0
    model = Subwords(tokenizer)
    own = Dictionary.load(str(dest / "input0" / "dict.txt"))
    assert set(model.symbols) <= set(own.symbols)
    whole = [(row[0], [model.symbols[i] for i in model.encode(row[2:]).ids]) for row in rows]
    found = [e for split in SPLITS for e in examples_of(dest, split)]
    assert sorted(found) == sorted((label, " ".join(text[:5])) for label, text in whole)
    truncated = facts_of(dest)["parts"]["train"]["truncated texts"]
    assert truncated == sum(len(text) >= 6 for _, text in whole)
    assert (dest / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    capsys.readouterr()
    assert run_own(*words, "--vocabulary-size", "2", "--force") == 1
    assert "--vocabulary-size is 2; allowed: without --tokenizer" in one_line(capsys)
    assert run_own(*words, "--min-count", "2", "--force") == 1
    assert "--min-count is 2; allowed: without --tokenizer" in one_line(capsys)
    assert run_own(source, dest, "--tokenizer", write(tmp_path / "bad.json", "{}"), "--force") == 1
    assert "bad.json: is no tokenizer.json" in one_line(capsys)
    assert run_own(*words) == 0  # is there already
    assert run_own(*words, "--seed", "2") == 1
