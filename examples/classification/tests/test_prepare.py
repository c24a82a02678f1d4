"""Classification data: every example accounted for, folds disjoint, nothing half-made."""

import json
from collections import Counter
from itertools import product

import pytest

from classification import prepare as known
from fairseq_clusterformer.cli.main import program
from tests.corpora.commands import SPLITS, one_line, write
from tests.corpora.test_labelled import examples_of, facts_of


def run(name, folder, *options):
    words = [name, folder / "dest", "--source", folder / "source", *options]
    return program(known.NAME, known.main, list(map(str, words)))


POST = "From: me@a.org\nSubject: Re: Engines_2\nLines: 5\n\nMy engine's 4 valves\xe9.\n--\nend\n"


def test_posts_keep_subject_and_body(tmp_path, capsys):
    for part, group in product(("train", "test"), known.GROUPS[:2]):
        for i in range(20 if part == "train" else 3):
            write(tmp_path / "source" / f"20news-bydate-{part}" / group / f"{i}", POST, "latin-1")
    assert run("20news", tmp_path) == 0
    folder = tmp_path / "dest" / "20news"
    text = "re : engines _ 2 my engine ' s 4 valvesé . - - end"
    for split, number in (("train", 18), ("valid", 2), ("test", 3)):
        expected = [(group, text) for group in known.GROUPS[:2] for _ in range(number)]
        assert examples_of(folder, split) == expected
    assert facts_of(folder)["settings"]["max_length"] == 1500
    write(tmp_path / "source" / "20news-bydate-test" / "a" / "b" / "c", "")
    capsys.readouterr()
    assert run("20news", tmp_path, "--force") == 1
    assert "20news-bydate-test: a/b/c; allowed: GROUP/NUMBER" in one_line(capsys)


def tabs(*cells):
    return "\t".join(cells) + "\n"


NLI = ("contradiction", "entailment", "neutral")
PAIR, RAW = ("a man ' s dog , 3 .", "no dog ?"), ("A man's dog, 3.", "No dog?")
TOKENISED = ("a man 's dog", "no-dog ?")  # of some layouts, whose words stand between blanks
OBJECT = json.dumps({"gold_label": "{}", "sentence1": RAW[0], "sentence2": RAW[1]}) + "\n"
SICK = tabs("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")
SICK_ROW = tabs("1", *RAW, "4.5", "{}")
WIKIQA = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\n"
WIKIQA_ROW = tabs("Q1", RAW[0], "D1", "T", "S1", RAW[1], "{}")
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
STSB = "sentence1\tsentence2\tscore\n"
QQP_ROW, ROW = tabs("1", "1", "2", *RAW, "{}"), tabs(*RAW, "{}")
ALIGNED = {"sim.txt": "{}\n", "id.txt": "Q1\n", "a.toks": TOKENISED[0] + "\n"}
ALIGNED |= {"b.toks": TOKENISED[1] + "\n"}
ALIGNED = {f"wikiqa/{{}}/{name}": ("", line) for name, line in ALIGNED.items()}
DEV, TRIAL = ("train", "dev", "test"), ("train", "trial", "test_annotated")
MATCHED = ("train", "dev_matched", "dev_mismatched")
LAYOUTS = {  # names of the parts, files of each, with header and line; labels; their classes
    "snli": (DEV, {"snli_1.0/snli_1.0_{}.jsonl.gz": ("", OBJECT)}, (*NLI, "-"), NLI),
    "scitail json": (DEV, {"a/scitail_1.0_{}.txt": ("", OBJECT)}, NLI[1:], NLI[1:]),
    "scitail": (DEV, {"scitail_1.0_{}.tsv": ("", ROW)}, ("entails", "neutral"), NLI[1:]),
    "sick": (TRIAL, {"SICK_{}.txt": (SICK, SICK_ROW)}, ("NEUTRAL",), NLI[2:]),
    "quora": (DEV, {"{}.tsv": ("", tabs("{}", *TOKENISED, "1"))}, "10", "10"),
    "wikiqa": (DEV, {"c/WikiQA-{}.tsv": (WIKIQA, WIKIQA_ROW)}, "10", "10"),
    "wikiqa aligned": (DEV, ALIGNED, "10", "10"),
    "cola": (DEV[:2], {"CoLA/{}.tsv": ("", tabs("gj04", "{}", "*", RAW[0]))}, "01", "01"),
    "sst2": (DEV[:2], {"SST-2/{}.tsv": ("sentence\tlabel\n", f"{RAW[0]} \t{{}}\n")}, "01", "01"),
    # the official file has lines that are broken
    "qqp": (DEV[:2], {"QQP/{}.tsv": (QQP + "9\tbroken\n", QQP_ROW)}, "01", "01"),
    "mnli": (MATCHED, {"MNLI/{}.tsv": ("sentence1\tsentence2\tgold_label\n", ROW)}, NLI, NLI),
    "stsb": (DEV[:2], {"STS-B/{}.tsv": (STSB, ROW)}, ("0.25", "5.000"), ("0.25", "5.0")),
}


def write_layout(source, layout):
    places, files, labels, _ = LAYOUTS[layout]
    for place, (name, (header, line)) in product(places, files.items()):
        lines = (line.replace("{}", label) for label in labels)
        write(source / name.replace("{}", place), header + "".join(lines))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_official_splits(tmp_path, layout):
    name = layout.split()[0]
    write_layout(tmp_path / "source", layout)
    assert run(name, tmp_path) == 0
    folder, (places, _, _, classes) = tmp_path / "dest" / name, LAYOUTS[layout]
    texts = TOKENISED if layout in ("quora", "wikiqa aligned") else PAIR
    texts = texts[:1] if name in ("cola", "sst2") else texts
    assert list(facts_of(folder)["splits"]) == list(SPLITS[: len(places)])
    for split in SPLITS[: len(places)]:
        if name == "stsb":  # numbers
            numbers = (folder / "label" / f"{split}.label").read_text().split()
            assert (numbers, facts_of(folder)["classes"]) == (list(classes), [])
            continue
        assert examples_of(folder, split) == [(label, *texts) for label in classes]
        if name == "wikiqa":
            assert (folder / "group" / f"{split}.txt").read_text() == "Q1\nQ1\n"
    dropped = facts_of(folder)["parts"]["train"].get("dropped: no gold label", 0)
    assert dropped == (name in ("snli", "qqp"))


def test_quora_as_released_is_divided(tmp_path):
    rows = [f'{i}\t1\t2\tWhat is {i}?\t"Who said ""{i}""\nagain?"\t{i % 2}\n' for i in range(160)]
    write(tmp_path / "source" / "quora_duplicate_questions.tsv", QQP + "".join(rows))
    assert run("quora", tmp_path) == 0
    for split, number in {"test": 4, "valid": 4, "train": 152}.items():
        examples = examples_of(tmp_path / "dest" / "quora", split)
        assert Counter(label for label, *_ in examples) == dict.fromkeys("01", number // 2)
    number = examples[-1][1].split()[2]
    texts = f"what is {number} ?", f'who said " {number} " again ?'
    assert examples[-1] == (str(int(number) % 2), *texts)


DAMAGES = [  # layout or data set, file, its content, what is said
    ("sick", "SICK_trial.txt", SICK + tabs("1", "a", "b", "1", "MAYBE"), "label is 'MAYBE'; allo"),
    ("sick", "SICK_trial.txt", SICK, "SICK_trial.txt: no example; allowed: one or more"),
    ("mr", "rt-polarity.pos", "good\n", "no rt-polarity.neg; allowed: a folder that holds rt"),
    ("mr", "README", "a film\n", "no files of that name; allowed: a folder that hol"),
    ("scitail", "scitail_1.0_dev.tsv", "a\tb\n", "line 1: 2 columns, ['a', 'b']; allowed: 3 col"),
    ("wikiqa aligned", "wikiqa/dev/b.toks", "one\n", "b.toks: has 1 lines, "),
    ("snli", "snli_1.0/snli_1.0_dev.jsonl", "", "allowed: one snli_1.0_dev*.jsonl*"),
    ("stsb", "STS-B/dev.tsv", STSB + "x\ty\tnan\n", "label is 'nan'; allowed: a finite number"),
]


@pytest.mark.parametrize(("layout", "name", "content", "message"), DAMAGES)
def test_damaged_files_leave_nothing(tmp_path, capsys, layout, name, content, message):
    if layout in LAYOUTS:
        write_layout(tmp_path / "source", layout)
    write(tmp_path / "source" / name, content).write_text(content)
    assert run(layout.split()[0], tmp_path) == 1
    assert message in one_line(capsys)
    assert not list((tmp_path / "dest").glob("*"))
