"""Classification data: every example accounted for, folds disjoint, nothing half-made."""

import json
from collections import Counter
from itertools import product

import pytest
from fairseq.data import Dictionary, indexed_dataset
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from classification import known
from classification import prepare as known_data
from fairseq_clusterformer.cli.main import main, program
from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.data.subwords import Subwords
from tests.corpora.commands import SPLITS, one_line, pack, write
from tests.data.tokenizers import made

PLACES = {"train": "train", "valid": "dev", "test": "test"}


def run(name, tmp_path, *options):
    """Run the command on the files in ``tmp_path / "source"``."""
    return prepare(name, tmp_path / "dest", "--source", tmp_path / "source", *options)


def prepare(name, *words):
    """By the package's command, or the example's."""
    given = [name, *map(str, words)]
    if name in known.CORPORA:
        return program(known_data.NAME, known_data.main, given)
    return main(["prepare", "classification", *given])


def task_of(folder, classes):
    config = SentencePredictionConfig(
        data=str(folder),
        num_classes=classes,
        no_shuffle=True,
        regression_target=False,
        classification_head_name="head",
        seed=1,
    )
    return SentencePredictionTask.setup_task(config)


def examples_of(folder, split, inputs=1):
    """Return (class, text, text...) of a split, as fairseq's task reads class and texts."""
    facts = json.loads((folder / "data.json").read_text())
    task = task_of(folder, len(facts["classes"]))
    task.load_dataset(split)
    loaded = task.dataset(split)
    targets = [loaded[i]["target"] for i in range(len(loaded))]
    assert all(target.shape == (1,) for target in targets)
    columns = [[facts["classes"][target] for target in targets]]
    for i in range(inputs):
        items = indexed_dataset.make_dataset(str(folder / f"input{i}" / split), "mmap")
        assert all(item[-1] == task.dictionary.eos() for item in items)
        columns.append([task.dictionary.string(item) for item in items])
    assert facts["splits"][split]["examples"] == len(loaded)
    assert facts["splits"][split]["classes"] == {
        name: columns[0].count(name) for name in facts["classes"]
    }
    return list(zip(*columns, strict=True))


def facts_of(folder):
    return json.loads((folder / "data.json").read_text())


# Ten-fold cross-validation

# Their digits stand alone, so that every word is in the train of every fold.
SENTENCES = [("0", f"café {' '.join(str(i))} is bad .") for i in range(100, 160)]
SENTENCES += [("1", f"café {' '.join(str(i))} is good !") for i in range(100, 140)]


def write_sentences(tmp_path, sentences=SENTENCES):
    lines = [f"{label} {text}\n" for label, text in sentences]
    write(tmp_path / "source" / "rt-polarity.all", "".join(lines), "latin-1")


@pytest.fixture
def sentences(tmp_path):
    write_sentences(tmp_path)
    return tmp_path


def test_folds_are_stratified_and_cover_everything(sentences, capsys):
    assert run("mr", sentences) == 0
    printed = capsys.readouterr()
    assert printed.out.count("80 train") == 10
    tested = []
    for k in range(10):
        folder = sentences / "dest" / "mr" / f"fold{k}"
        by_split = {split: examples_of(folder, split) for split in SPLITS}
        assert sorted(sum(by_split.values(), [])) == sorted(SENTENCES)
        for split, each in (("train", (48, 32)), ("valid", (6, 4)), ("test", (6, 4))):
            count = Counter(label for label, _ in by_split[split])
            assert (count["0"], count["1"]) == each
        tested += by_split["test"]
    assert sorted(tested) == sorted(SENTENCES)


def test_dictionary_is_of_train_alone(tmp_path):
    write_sentences(tmp_path, [(str(i % 2), f"word{i}") for i in range(20)])
    assert run("mr", tmp_path) == 0
    for folder in (tmp_path / "dest" / "mr").glob("fold*"):
        assert facts_of(folder)["vocabulary"] == {"size": 4 + 16}
        assert all(text.startswith("word") for _, text in examples_of(folder, "train"))
        assert all(text == "<unk>" for _, text in examples_of(folder, "test"))


def test_duplicates_are_kept_and_counted(tmp_path):
    write_sentences(tmp_path, [("0", "the same"), ("1", "the same")] * 10)
    assert run("mr", tmp_path) == 0
    assert facts_of(tmp_path / "dest" / "mr" / "fold0")["splits"]["test"] == {
        "examples": 2,
        "classes": {"0": 1, "1": 1},
        "also in train": 2,
        "input0 tokens": 6,
    }


def test_vocabulary_and_lengths(sentences):
    assert run("mr", sentences, "--vocabulary-size", 6, "--max-length", 4) == 0
    folder = sentences / "dest" / "mr" / "fold0"
    assert len(task_of(folder, 2).dictionary) == 6 + 1  # the task's own <mask>
    facts = facts_of(folder)
    assert facts["vocabulary"]["size"] == 6
    assert facts["parts"]["all"]["truncated texts"] == 100
    assert facts["splits"]["train"]["input0 tokens"] == 320
    words = {word for _, text in examples_of(folder, "test") for word in text.split()}
    assert words == {"1", "café", "<unk>"}
    assert run("mr", sentences, "--min-count", 30, "--force") == 0
    known = {symbol.split(" ")[0] for symbol in (folder / "input0" / "dict.txt").open()}
    assert {"café", "is", "bad", "good", ".", "!"} <= known
    assert not {"7", "8", "9"} & known


# 20 Newsgroups

POST = """From: me@example.org
Subject: Re: Engines_2
Lines: 5

In article <1> you wrote:
> what is quoted
My engine's 4 valves\xe9.

--
my footer
"""


@pytest.fixture(params=["folder", "archive"])
def posts(request, tmp_path):
    files = {}
    for part, number in (("train", 20), ("test", 3)):
        for group in known.GROUPS[:2]:
            for i in range(number):
                files[f"20news-bydate-{part}/{group}/{i}"] = POST.encode("latin-1")
    if request.param == "folder":
        for name, data in files.items():
            write(tmp_path / "source" / name, data.decode("latin-1"), "latin-1")
        return tmp_path
    pack(tmp_path / "source" / "20news-bydate.tar.gz", dict(reversed(files.items())))
    return tmp_path


def test_posts_keep_subject_and_body(posts):
    assert run("20news", posts) == 0
    folder = posts / "dest" / "20news"
    text = "re : engines _ 2 in article < 1 > you wrote : > what is quoted "
    text += "my engine ' s 4 valvesé . - - my footer"
    assert facts_of(folder)["classes"] == list(known.GROUPS)
    for split, number in (("train", 18), ("valid", 2), ("test", 3)):
        expected = [(group, text) for group in known.GROUPS[:2] for _ in range(number)]
        assert examples_of(folder, split) == expected
    assert facts_of(folder)["settings"]["strip"] == ["fields"]
    assert facts_of(folder)["settings"]["max_length"] == 1500


# Pairs

SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
WIKIQA = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\n"
QUORA = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
NLI = ("contradiction", "entailment", "neutral")
PAIR = ("a man ' s dog , 3 .", "no dog ?")
RAW = ("A man's dog, 3.", "No dog?")
TOKENISED = ("a man 's dog", "no-dog ?")  # of some layouts, whose words stand between blanks


def json_line(label):
    return json.dumps({"gold_label": label, "sentence1": RAW[0], "sentence2": RAW[1]}) + "\n"


def tabs(*cells):
    return "\t".join(cells) + "\n"


LAYOUTS = {  # a file for each split, its header, and a line of each label
    "snli": ("snli_1.0/snli_1.0_{}.jsonl.gz", "", json_line),
    "scitail json": ("snli_format/scitail_1.0_{}.txt", "", json_line),
    "scitail": ("tsv_format/scitail_1.0_{}.tsv", "", lambda label: tabs(*RAW, label)),
    "sick": ("SICK_{}.txt", SICK, lambda label: tabs("1", *RAW, "4.5", label)),
    "quora partition": ("{}.tsv", "", lambda label: tabs(label, *TOKENISED, "1")),
    "wikiqa": (
        "WikiQACorpus/WikiQA-{}.tsv",
        WIKIQA,
        lambda label: tabs("Q1", RAW[0], "D1", "T", "S1", RAW[1], label),
    ),
}
COLUMNS = {"sim.txt": str, "id.txt": lambda _: "Q1"}
COLUMNS |= {"a.toks": lambda _: TOKENISED[0], "b.toks": lambda _: TOKENISED[1]}


def write_pairs(source, layout, labels):
    """Write a layout: its pairs have the labels in turn."""
    for split, place in PLACES.items():
        if layout == "wikiqa aligned":
            for name, cell in COLUMNS.items():
                lines = "".join(f"{cell(label)}\n" for label in labels)
                write(source / "wikiqa" / place / name, lines)
            continue
        name, header, line = LAYOUTS[layout]
        if layout == "sick":
            place = {"valid": "trial", "test": "test_annotated"}.get(split, split)
        more = [line("-")] if layout == "snli" else []
        write(source / name.format(place), "".join([header, *map(line, labels), *more]))


@pytest.mark.parametrize(
    ("layout", "labels", "classes"),
    [
        ("snli", NLI, NLI),
        ("scitail", ("entails", "neutral"), ("entailment", "neutral")),
        ("scitail json", ("entailment", "neutral"), ("entailment", "neutral")),
        ("sick", tuple(map(str.upper, NLI)), NLI),
        ("quora partition", ("1", "0"), ("1", "0")),
        ("wikiqa", ("1", "0"), ("1", "0")),
        ("wikiqa aligned", ("1", "0"), ("1", "0")),
    ],
)
def test_official_splits_of_pairs(tmp_path, layout, labels, classes):
    name = layout.split()[0]
    write_pairs(tmp_path / "source", layout, labels)
    assert run(name, tmp_path) == 0
    folder = tmp_path / "dest" / name
    pair = TOKENISED if layout in ("quora partition", "wikiqa aligned") else PAIR
    for split in SPLITS:
        assert examples_of(folder, split, 2) == [(label, *pair) for label in classes]
        if name == "wikiqa":
            assert (folder / "group" / f"{split}.txt").read_text() == "Q1\nQ1\n"
    dictionaries = [(folder / f"input{i}" / "dict.txt").read_text() for i in (0, 1)]
    assert dictionaries[0] == dictionaries[1]
    assert (folder / "group").exists() == (name == "wikiqa")
    dropped = facts_of(folder)["parts"]["train"].get("dropped: no gold label", 0)
    assert dropped == (name == "snli")


def test_quora_as_released_is_divided(tmp_path):
    rows = [f'{i}\t1\t2\tWhat is {i}?\t"Who said ""{i}""\nagain?"\t{i % 2}\n' for i in range(160)]
    write(tmp_path / "source" / "quora_duplicate_questions.tsv", QUORA + "".join(rows))
    assert run("quora", tmp_path, "--max-length", 60) == 0
    folder = tmp_path / "dest" / "quora"
    sizes = {"train": 152, "valid": 4, "test": 4}
    for split in SPLITS:
        examples = examples_of(folder, split, 2)
        assert len(examples) == sizes[split]
        assert Counter(label for label, *_ in examples) == dict.fromkeys("01", sizes[split] // 2)
    label, first, second = examples_of(folder, "train", 2)[-1]
    number = first.split()[2]
    assert (label, first) == (str(int(number) % 2), f"what is {number} ?")
    assert second == f'who said " {number} " again ?'


# Own texts


def write_lines(path, *lines, encoding="utf-8"):
    write(path, "".join(f"{line}\n" for line in lines), encoding)


def own_rows(number=20):
    """Label, text and the second text of a pair, in turn of three labels."""
    return [("abc"[i % 3], f"Text {i}, of {'abc'[i % 3]}.", f"Second {i}") for i in range(number)]


def as_table(delimiter, header, width):
    lines = [delimiter.join(row[:width]) for row in own_rows(60)]
    if delimiter == ",":
        lines = [",".join(f'"{cell}"' for cell in row[:width]) for row in own_rows(60)]
    return [header, *lines] if header else lines


def as_json(*names):
    return [json.dumps(dict(zip(names, row, strict=False)) | {"x": 1}) for row in own_rows(60)]


@pytest.mark.parametrize(
    ("name", "lines", "options", "inputs"),
    [
        ("a.tsv", as_table("\t", "", 2), (), 1),
        ("a.tsv", as_table("\t", "", 3), (), 2),
        ("a.csv", as_table(",", "label,text", 2), (), 1),
        ("a.csv", as_table(",", "y,q,a", 3), ("--label-field=y", "--text-fields=q,a"), 2),
        ("a.csv", as_table(",", "label,text,id", 3), (), 1),
        ("a.jsonl", as_json("label", "text"), (), 1),
        ("a.jsonl", as_json("label", "text1", "text2"), (), 2),
        ("a.jsonl", as_json("y", "q"), ("--label-field", "y", "--text-fields", "q"), 1),
        ("a.data", [f"{a} {b}" for a, b, _ in own_rows(60)], (), 1),
        ("a.txt.gz", as_table("\t", "", 2), (), 1),
    ],
)
def test_own_file_is_divided(tmp_path, name, lines, options, inputs):
    write_lines(tmp_path / name, *lines)
    assert prepare("text", tmp_path / name, tmp_path / "dest", *options) == 0
    rows = []
    for split, number in (("train", 48), ("valid", 6), ("test", 6)):
        examples = examples_of(tmp_path / "dest", split, inputs)
        assert Counter(row[0] for row in examples) == dict.fromkeys("abc", number // 3)
        rows += examples
    assert len(rows) == 60
    for label, text, *more in examples_of(tmp_path / "dest", "train", inputs):
        number = text.split()[1]
        assert text == f"text {number} , of {label} ."
        assert more == [f"second {number}"] * (inputs - 1)
    assert (tmp_path / "dest" / "label" / "dict.txt").read_text().split() == list("a1b1c1")


@pytest.mark.parametrize("splits", [True, False])
def test_folder_of_reviews(tmp_path, splits):
    for split in ("train", "test") if splits else ("",):
        for label in ("pos", "neg", "unsup"):
            for i in range(10):
                text = f"A {label} film,\n\nthe {i}th.\n"
                write(tmp_path / "source" / split / label / f"{i}.txt", text)
    write(tmp_path / "source" / "README", "what it is")
    words = ("text", tmp_path / "source", tmp_path / "dest", "--valid-fraction", 0.2)
    assert prepare(*words, "--test-fraction", 0.2, "--labels", "pos,neg") == 0
    sizes = {split: len(examples_of(tmp_path / "dest", split)) for split in SPLITS}
    assert sizes == (
        {"train": 16, "valid": 4, "test": 20} if splits else {"train": 12, "valid": 4, "test": 4}
    )
    assert {label for label, _ in examples_of(tmp_path / "dest", "train")} == {"pos", "neg"}
    assert examples_of(tmp_path / "dest", "train")[0][1].startswith("a neg film , the")


def test_equal_texts_come_to_one_split(tmp_path):
    rows = own_rows(60)
    write_lines(tmp_path / "a.tsv", *[f"{label}\t{text}" for label, text, _ in rows * 3])
    assert prepare("text", tmp_path / "a.tsv", tmp_path / "dest") == 0
    splits = facts_of(tmp_path / "dest")["splits"]
    assert [splits[split]["examples"] > 0 for split in SPLITS] == [True] * 3
    assert splits["valid"]["also in train"] == splits["test"]["also in train"] == 0


def test_dest_within_what_is_read_is_refused(tmp_path, capsys):
    for label, text, _ in own_rows(60):
        write(tmp_path / "source" / label / f"{text}.txt", text)
    assert prepare("text", tmp_path / "source", tmp_path / "source" / "dest") == 1
    assert f"lies in {tmp_path / 'source'}, where" in one_line(capsys)
    assert prepare("text", tmp_path / "source", tmp_path / "other") == 0


def test_own_files_of_each_split_and_no_test(tmp_path, capsys):
    for name in ("train.tsv", "my.dev.tsv"):
        write_lines(tmp_path / "source" / name, *as_table("\t", "", 2))
    write(tmp_path / "source" / "notes.txt", "what it is")
    assert prepare("text", tmp_path / "source", tmp_path / "dest") == 0
    assert "passed over, in no split: notes.txt" in capsys.readouterr().err
    assert facts_of(tmp_path / "dest")["splits"].keys() == {"train", "valid"}
    assert len(examples_of(tmp_path / "dest", "valid")) == 60
    assert not (tmp_path / "dest" / "input0" / "test.bin").exists()


OWN_MISTAKES = {  # a file's name, its lines, what is said, and options
    "one column": ("a.tsv", "x\ty\nx", "line 2: 1 columns, ['x']; allowed: 2 columns (lab"),
    "empty label": ("a.tsv", "x\ty\n\ty", "a.tsv: line 2: the label is empty"),
    "one label": ("a.tsv", "x\ty\n" * 9, "9 examples, labels: x; allowed: two labels or more"),
    "labels": ("a.tsv", "".join(f"{i}\ty\n" for i in range(9)), "9 labels in 9 examples, such as"),
    "few": ("a.tsv", "a\tx\nb\ty\n" * 2, "4 examples are too few to draw test from"),
    "no such label": ("a.tsv", "a\tx\nb\ty\n" * 9, "--labels is a,c: no example", "--labels=a,c"),
    "header": ("a.csv", "a,b\n1,2", "line 2: {'a': '1'", "--label-field=y"),
    "a header": (
        "a.csv",
        "mood,words\n" + "good,x\nbad,y\n" * 9,
        "no other line has the label 'mo",
    ),
    "special": (
        "a.tsv",
        "madeupword0012\tx\nb\ty\n" * 3,
        "a.tsv: a label is madeupword0012, a spe",
    ),
    "surrogate": (
        "a.jsonl",
        '{"label": "a", "text": "\\ud83d"}',
        r"a.jsonl: line 1: '\ud83d' is half a character; allowed: valid Unicode",
    ),
    "brackets": ("a.jsonl", "[" * 100_000, "a.jsonl: line 1: '[[[["),
    "null": (
        "a.jsonl",
        '{"label": null, "text": "x"}',
        "line 1: {'label': None, 'text': 'x'}; all",
    ),
    "Latin-1": ("a.tsv", b"x\t\xe9", "a.tsv: line 1: byte 0xE9 "),
}


@pytest.mark.parametrize("mistake", OWN_MISTAKES)
def test_mistakes_in_own_files(tmp_path, capsys, mistake):
    name, content, message, *options = OWN_MISTAKES[mistake]
    write(tmp_path / name, content)
    assert prepare("text", tmp_path / name, tmp_path / "dest", *options) == 1
    assert message in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == [name]


# Mistakes

SNLI = "snli_1.0/snli_1.0_dev.jsonl"
SCITAIL = "tsv_format/scitail_1.0_dev.tsv"
DAMAGES = [  # corpus (with its layout), file, content (None: it goes), what is said
    (
        *("sick", "SICK_trial.txt", SICK + "1\ta\tb\t1\tMAYBE\n"),
        "line 2: label is 'MAYBE'; allowed: CONTRADICTION, ENTAILMENT",
    ),
    ("sick", "SICK_trial.txt", SICK, "SICK_trial.txt: no example; allowed: one or more"),
    ("mr", "rt-polarity.pos", "good\n", "no rt-polarity.neg; allowed: a folder that holds rt"),
    (
        "mr",
        "README",
        "a film\n",
        "no files of that name; allowed: a folder that hol",
    ),
    (
        *("scitail", SCITAIL, tabs("a", "b", "entails") + tabs("a", "b")),
        "dev.tsv: line 2: 2 columns, ['a', 'b']; allowed: 3 columns (premise, hypothesis, label)",
    ),
    ("wikiqa aligned", "wikiqa/dev/b.toks", "one\n", "b.toks: has 1 lines, "),
    ("snli", SNLI, "", "allowed: one */snli_1.0_dev*.jsonl*"),
    ("20news", "20news-bydate.tar.gz", b"text", "tar.gz: cannot be read"),
]
LABELS = {"sick": ("NEUTRAL",), "snli": NLI, "scitail": ("entails", "neutral")}


@pytest.mark.parametrize(("layout", "name", "content", "message"), DAMAGES)
def test_damaged_files_are_refused_and_nothing_is_left(
    tmp_path, capsys, layout, name, content, message
):
    source, corpus = tmp_path / "source", layout.split()[0]
    if corpus in ("sick", "snli", "scitail", "wikiqa"):
        write_pairs(source, layout, LABELS.get(corpus, "01"))
    if content is None:
        (source / name).unlink()
    elif name.endswith(".tar.gz"):
        source.mkdir()
        (source / name).write_bytes(content)
    else:
        write(source / name, content)
    assert run(corpus, tmp_path) == 1
    assert message in one_line(capsys)
    assert not list((tmp_path / "dest").glob("*"))


# Subwords of a tokenizer.json


def test_a_tokenizer_says_the_words(tmp_path, capsys):
    """Of each split, whatever train holds; the file goes along."""
    pairs = product(("A lake", "a", "and", "Fish", "cafés,"), repeat=2)
    rows = [f"{i % 2}\t{' '.join(pair)}, a café and a fish\n" for i, pair in enumerate(pairs)]
    write(tmp_path / "rows.tsv", "".join(rows))
    tokenizer = made("wordpiece", tmp_path / "tokenizer.json")
    words = ("text", tmp_path / "rows.tsv", tmp_path / "dest", "--tokenizer", tokenizer)
    words += ("--test-fraction", "0.2", "--valid-fraction", "0.2")
    assert prepare(*words, "--max-length", "6") == 0
    model = Subwords(tokenizer)
    own = Dictionary.load(str(tmp_path / "dest" / "input0" / "dict.txt"))
    assert own.symbols == binarize.symbol_dictionary(model.symbols).symbols
    whole = [
        (row[0], " ".join(model.symbols[i] for i in model.encode(row[2:]).ids)) for row in rows
    ]
    found = [e for split in SPLITS for e in examples_of(tmp_path / "dest", split)]
    assert sorted(found) == sorted((label, " ".join(t.split()[:5])) for label, t in whole)
    assert (tmp_path / "dest" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert facts_of(tmp_path / "dest")["subwords"].keys() == {"tokenizer.json"}
    capsys.readouterr()
    assert prepare(*words, "--min-count", "2", "--force") == 1
    assert "--min-count is 2; allowed: without --tokenizer" in one_line(capsys)
    (tmp_path / "bad.json").write_text("{}")
    assert prepare(*words[:3], "--tokenizer", tmp_path / "bad.json", "--force") == 1
    assert "bad.json: is no tokenizer.json" in one_line(capsys)
    assert prepare(*words, "--max-length", "6") == 0  # is there already


GLUE = {  # folder, header, a line, labels
    "cola": ("CoLA", "", "gj04\t{label}\t*\tA text of {n}.", "01"),
    "sst2": ("SST-2", "sentence\tlabel\n", "a text of {n} \t{label}", "01"),
    "qqp": (
        *("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"),
        *("{n}\t1\t2\tA {n}\tB?\t{label}", "01"),
    ),
    "stsb": (
        *("STS-B", "index\tgenre\tsentence1\tsentence2\tscore\n"),
        *("{n}\tnews\tA {n}\tB\t{label}", ("0.25", "5.000")),
    ),
    "mnli": (
        *("MNLI", "index\tsentence1\tsentence2\tlabel1\tgold_label\n"),
        *("{n}\tA {n}\tB\tneutral\t{label}", ("neutral", "entailment")),
    ),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue(name, tmp_path):
    """Ten records in the official format."""
    folder, header, form, labels = GLUE[name]
    rows = "\n".join(form.format(n=n, label=labels[n % 2]) for n in range(10)) + "\n"
    splits = ("dev_matched", "dev_mismatched") if name == "mnli" else ("dev",)
    for split in ("train", *splits):
        write(tmp_path / "source" / folder / f"{split}.tsv", header + rows)
    if name == "qqp":  # the official file has lines that are broken
        write(tmp_path / "source/QQP/train.tsv", header + "9\tbroken\n" + rows)
    assert run(name, tmp_path) == 0
    made = json.loads((tmp_path / "dest" / name / "data.json").read_text())
    parts = dict(zip(("valid", "test"), splits, strict=False))
    assert {split: of["examples"] for split, of in made["splits"].items()} == dict.fromkeys(
        ("train", *parts), 10
    )
    assert made["parts"]["train"].get("dropped: no gold label", 0) == (name == "qqp")
    if name == "stsb":
        assert made["classes"] == []
        numbers = (tmp_path / "dest/stsb/label/valid.label").read_text().split()
        assert numbers == ["0.25", "5.0"] * 5
    else:
        assert set(labels) <= set(made["classes"])
