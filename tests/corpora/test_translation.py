"""`clusterformer prepare translation`: every pair accounted for, in both directions."""

import random
import re
from hashlib import sha256
from pathlib import Path

import pytest
from fairseq.data import Dictionary, indexed_dataset

from fairseq_clusterformer.corpora.files import Archive
from fairseq_clusterformer.corpora.pairs import CORPORA, draw_pairs
from fairseq_clusterformer.data.text import TextPipeline
from tests.corpora.commands import SPLITS, files_in, one_line, pack, record_of, write
from tests.corpora.commands import run as run_command

LANGUAGES = ("de", "en")
TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def run(*words, name="iwslt14", operations="--bpe-operations 30"):
    """Run the command, with few merges to learn."""
    return run_command("prepare translation", name, *words, operations)


def write_pairs(prefix, pairs, end="", languages=LANGUAGES):
    """Write PREFIX.de and PREFIX.en, one line a pair."""
    for side, lang in zip(zip(*pairs, strict=True), languages, strict=True):
        write(Path(f"{prefix}.{lang}{end}"), "".join(f"{line}\n" for line in side))


def subwords_of(dest, split, lang, pair="de-en"):
    """Return the lines of a binarised split, from nothing but what is in the folder."""
    dictionary = Dictionary.load(str(dest / f"dict.{lang}.txt"))
    items = indexed_dataset.make_dataset(str(dest / f"{split}.{pair}.{lang}"), "mmap")
    assert all(item[-1] == dictionary.eos() for item in items)
    return [" ".join(dictionary[i] for i in item[:-1]) for item in items]


def words_of(dest, split):
    """Return the pairs of tokens of a binarised split."""
    text = TextPipeline.from_folder(dest)
    languages, pair = text.languages, "-".join(text.languages)
    sides = [map(text.words, subwords_of(dest, split, lang, pair)) for lang in languages]
    return list(zip(*sides, strict=True))


def raw_of(dest, split):
    languages = record_of(dest)["recipe"]["languages"]
    sides = [(dest / "raw" / f"{split}.{lang}").read_text().split("\n") for lang in languages]
    return list(zip(*sides, strict=True))[:-1]


def caption(number):
    """Return a raw pair; its digits stand alone, so that 0 to 9 are all the subwords it needs."""
    digits = " ".join(str(number))
    return f"Der Mann {digits} geht.", f"The man {digits} walks."


def lower_caption(number):
    """Return the same pair's tokens."""
    return tuple(line.lower().replace(".", " .") for line in caption(number))


@pytest.fixture
def talks(tmp_path):
    """IWSLT14's archive, unpacked: 1 title, 1 description, 51 lines; two segments a test."""
    folder = tmp_path / "talks" / "de-en"
    for i, lang in enumerate(LANGUAGES):
        lines = ["<url>http://x</url>", "<keywords>talks, a</keywords>", "<talkid>1</talkid>"]
        lines += [f"<title>Men & man {lang}</title>", "<description>TED: It's</description>"]
        lines += [caption(n)[i] for n in range(20)]
        lines += [("man " * 176).strip(), "man " * 175, "", ("a a a", "a a")[i]]
        lines += [("a a a a", "a a")[i], *(caption(n)[i] for n in range(20, 45))]
        lines.append("man " * 175)  # as the first pair of valid, which does not matter here
        write(folder / f"train.tags.de-en.{lang}", "\n".join(lines) + "\n")
        for test in TALKS:
            name = f"IWSLT14.{test}.de-en.{lang}.xml"
            text = '<?xml version="1.0"?>\n<doc docid="1">\n<title>Not this</title>\n'
            text += f'<seg id="1"> {test} sagt’s “{lang}” </seg>\n'
            text += '<seg id="2">Man & men</seg>\n</doc>\n'
            write(folder / name, text)
    return tmp_path / "talks"


@pytest.mark.parametrize("packed", [False, True])
def test_talks_lose_their_markup_and_every_23rd_pair_is_valid(talks, tmp_path, capsys, packed):
    dest, source = tmp_path / "dest", talks
    if packed:
        source = tmp_path / "packed"
        pack(source / "de-en.tgz", files_in(talks))
    assert run(dest, "--source", source) == 0
    assert "\r" not in "".join(capsys.readouterr())  # no progress bars where nobody looks
    kept = [("men &amp; man de", "men &amp; man en"), ("ted : it &apos; s", "ted : it &apos;s")]
    kept += [lower_caption(n) for n in range(20)]
    kept += [("man " * 174 + "man",) * 2, ("a a a", "a a")]
    kept += [*(lower_caption(n) for n in range(20, 45)), kept[22]]
    assert words_of(dest, "valid") == kept[22:46:23]
    assert words_of(dest, "train") == kept[:22] + kept[23:45] + kept[46:]
    assert record_of(dest)["splits"]["train"] == {
        "pairs": 48,
        "dropped by length": 3,
        **{
            f"{side} subwords": sum(len(x.split()) + 1 for x in subwords_of(dest, "train", side))
            for side in LANGUAGES
        },
    }
    assert raw_of(dest, "valid")[1] == caption(41)
    tests = []
    for test in TALKS:
        tests += [tuple(f"{test} sagt's “{lang}”" for lang in LANGUAGES), ("Man & men",) * 2]
    assert raw_of(dest, "test") == tests
    assert words_of(dest, "test")[1] == ("man &amp; men",) * 2
    text = TextPipeline.from_folder(dest)  # raw text comes to the same subwords
    assert text.encode("Man & men", "de") == subwords_of(dest, "test", "de")[1]
    assert text.decode(subwords_of(dest, "test", "en")[1], "en") == "man & men"


def test_sentencepiece_takes_text_without_tokens(talks, tmp_path):
    dest, options = tmp_path / "dest", "--vocabulary sentencepiece --bpe-operations 290"
    assert run(dest, "--source", talks, operations=options) == 0
    assert words_of(dest, "train")[3] == ("der mann 1 geht.", "the man 1 walks.")
    assert words_of(dest, "test")[1] == ("man & men",) * 2
    text = TextPipeline.from_folder(dest)
    assert text.decode(text.encode("Ein ☃,  the Man.", "en"), "en") == "ein ☃, the man."
    assert (dest / "dict.en.txt").read_bytes() == (dest / "dict.de.txt").read_bytes()


# More training text


def test_extra_pairs_come_to_train_unless_held_out(talks, tmp_path):
    dest = tmp_path / "dest"
    write_pairs(tmp_path / "more", [caption(200), caption(41), ("", "x"), caption(201)], ".gz")
    columns = "Hi there.\tHallo du.\tsource\nThe man 4 1 walks.\tEin anderer Mann ging fort.\n"
    columns += "A cat.\tA cat.\n"
    write(tmp_path / "pairs.tsv.bz2", columns)
    extra = "--extra-train", tmp_path / "more", "--extra-train", tmp_path / "pairs.tsv.bz2"
    assert run(dest, "--source", talks, *extra) == 0
    more = [lower_caption(200), lower_caption(201), ("hallo du .", "hi there ."), ("a cat .",) * 2]
    assert words_of(dest, "train")[48:] == more
    count = record_of(dest)["splits"]["train"]
    assert (count["pairs"], count["in valid or test"], count["dropped by length"]) == (52, 2, 4)


# Multi30k and WMT14


@pytest.mark.parametrize("form", ["files", "download"])
def test_multi30k_has_two_tests(tmp_path, monkeypatch, form):
    names = {"train": range(30), "val": [50], "test_2016_flickr": [60, 61]}
    for name, numbers in (names | {"test_2017_flickr": [70]}).items():
        write_pairs(tmp_path / "multi30k" / name, map(caption, numbers), ".gz")
    archives = []
    for path in sorted((tmp_path / "multi30k").iterdir()):
        checksum = "sha256:" + sha256(path.read_bytes()).hexdigest()
        archives.append(Archive(path.as_uri(), checksum, {path.name: checksum}))
    monkeypatch.setitem(vars(CORPORA["multi30k"]), "archives", archives)
    source = ("--source", tmp_path / "multi30k") if form == "files" else ()
    dest = tmp_path / "dest"
    assert run(dest, *source, name="multi30k", operations="--bpe-operations 20") == 0
    assert words_of(dest, "train") == [lower_caption(n) for n in range(30)]
    assert words_of(dest, "test1") == [lower_caption(70)]
    assert raw_of(dest, "valid") == [caption(50)]
    assert raw_of(dest, "test") == [caption(60), caption(61)]


def test_wmt14_is_cleaned_by_subwords_and_keeps_its_case(tmp_path):
    folder, dest = tmp_path / "wmt", tmp_path / "dest"
    digits = [" ".join(str(number)) for number in range(298)]
    pairs = [(f"Das ist-es {number}.", f"It is-so {number}.") for number in digits]
    letters = [chr(ord("A") + i) for i in range(26)]  # 20 tokens of some 26 subwords:
    long = " ".join("".join(random.sample(letters, 26)) for _ in range(20))
    write_pairs(folder / "europarl-v7.de-en", pairs[:150])
    write_pairs(folder / "commoncrawl.de-en", [(long, long), *pairs[150:200]])
    write_pairs(folder / "news-commentary-v9.de-en", [*pairs[200:], ("", "Nothing.")])
    segments = {
        f"test-full/newstest2014-deen-{name}.sgm": f'<srcset>\n<seg id="1">{text}</seg>\n'
        for name, text in (("ref.de", "Ein <b>-Test."), ("src.en", "A test’s end."))
    }
    pack(folder / "test-full.tgz", segments)
    options = "--bpe-operations 60"
    assert run(dest, "--source", folder, name="wmt14-en-de", operations=options) == 0
    lines = [*pairs[:150], (long, long), *pairs[150:], ("", "Nothing.")]
    assert raw_of(dest, "valid") == [lines[99], lines[199]]  # the third is empty
    expected = [pair for i, pair in enumerate(lines) if (i + 1) % 100 and pair != (long, long)]
    text = TextPipeline.from_folder(dest)
    assert words_of(dest, "train") == [
        tuple(text.tokens(line, lang) for line, lang in zip(pair, LANGUAGES, strict=True))
        for pair in expected
    ]
    assert words_of(dest, "train")[0] == ("Das ist @-@ es 0 .", "It is @-@ so 0 .")
    assert raw_of(dest, "test") == [("Ein <b>-Test.", "A test’s end.")]
    assert record_of(dest)["splits"]["train"]["dropped by length"] == 1


# Own pairs


def own(number):
    """Return a raw pair of French and Japanese."""
    digits = " ".join(str(number))
    return f"L’homme {digits} marche.", f"男 {digits} は歩く。"


def write_own(prefix, pairs, end=""):
    write_pairs(prefix, pairs, end, ("fr", "ja"))


OWN = "--source-lang fr --target-lang ja"


def run_own(*words):
    return run(*words, OWN, name="text", operations="")


@pytest.mark.parametrize("form", ["", ".xz", "columns"])
def test_own_pairs_of_any_language(tmp_path, form):
    dest, pairs = tmp_path / "dest", [own(i) for i in range(40)]
    train = tmp_path / "train"
    if form == "columns":
        train = write(tmp_path / "train.tsv", "".join("\t".join(pair) + "\n" for pair in pairs))
    else:
        write_own(train, pairs, form)
    write_own(tmp_path / "valid", [own(50)])
    write_own(tmp_path / "test", [own(60), own(61)])
    options = "--valid", tmp_path / "valid", "--test", tmp_path / "test"
    assert run_own(dest, "--train", train, *options) == 0
    assert [words_of(dest, s) for s in ("train", "valid")] == [pairs, [own(50)]]
    assert raw_of(dest, "test") == [own(60), own(61)]
    text = TextPipeline.from_folder(dest)
    assert text.languages == ("fr", "ja")
    assert text.decode(text.encode("男 7 は歩く。", "ja"), "ja") == "男 7 は歩く。"


def test_what_is_not_given_is_drawn_from_train_and_shares_no_sentence_with_it(tmp_path):
    pairs = [own(i) for i in range(60)] * 2 + [(own(i)[0], own(i + 100)[1]) for i in range(60)]
    drawn = []
    for name, order in (("one", pairs), ("other", pairs[::-1])):
        write_own(tmp_path / name, order)
        dest = tmp_path / f"{name}.dest"
        assert run_own(dest, "--train", tmp_path / name, "--lowercase") == 0
        splits = {split: words_of(dest, split) for split in SPLITS}
        drawn.append({split: set(found) for split, found in splits.items()})
        counts = record_of(dest)["splits"]
        pairs_of_all = [counts[split]["pairs"] for split in splits]
        assert sum(pairs_of_all) + counts["train"]["in valid or test"] == len(pairs)
    assert drawn[0] == drawn[1]
    assert [len(drawn[0][split]) for split in ("valid", "test")] == [6, 6]
    for side in (0, 1):
        held_out = {pair[side] for split in ("valid", "test") for pair in drawn[0][split]}
        assert not held_out & {pair[side] for pair in drawn[0]["train"]}
    assert all(pair[0].startswith("l’homme") for pair in drawn[0]["train"])


@pytest.mark.parametrize("share", [None, 0.1, 0.9])
def test_three_pairs_are_one_of_each_split(share):
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    drawn = draw_pairs(lambda: pairs, dict.fromkeys(("valid", "test"), share))
    assert [len(list(drawn[split])) for split in SPLITS] == [1, 1, 1]


def test_shares_that_the_user_gives_are_drawn(tmp_path):
    pairs = [own(i) for i in range(100)]
    write_own(tmp_path / "train", pairs)
    write_own(tmp_path / "test", pairs[:5])
    words = ("--train", tmp_path / "train", "--valid-fraction", "0.2")
    assert run_own(tmp_path / "both", *words, "--test-fraction", "0.3") == 0
    found = {split: set(words_of(tmp_path / "both", split)) for split in SPLITS}
    assert [len(found[split]) for split in ("train", "valid", "test")] == [50, 20, 30]
    assert set.union(*found.values()) == set(pairs)
    assert run_own(tmp_path / "one", *words, "--test", tmp_path / "test") == 0
    train, valid = (words_of(tmp_path / "one", split) for split in ("train", "valid"))
    assert set(valid) == found["valid"]
    assert not set(train) & {*valid, *pairs[:5]}
    assert run_own(tmp_path / "one", *words[:3], "0.1", "--test", tmp_path / "test") == 1


# Mistakes: one line that names the file, the value and what is allowed

OWN_MISTAKES = {
    "--train none": r"--train is none: found nothing; allowed: a PREFIX with PREFIX\.f",
    "--train half": r"--train is half: found half\.fr; allowed: .*PREFIX\.fr and PREF",
    "--train uneven": r"uneven\.ja: has 2 lines, .*fr has more; allowed: the same number",
    "--train empty --valid two.tsv --test two.tsv": r"no pair is left for train \(2 dropped",
    "--train one.tsv": r"one\.tsv: line 2: 'only'; allowed: fr<TAB>ja",
    "--train two.tsv": r"different pairs of --train: 2; allowed: more than 2, to draw",
    "--train two.tsv --valid two.tsv --test two.tsv": r".*for train \(2 in valid or test",
    "--train two.tsv --valid two.tsv --valid-fraction .1": r"--valid-fraction is 0\.1; allowed: w",
    "--train two.tsv --valid-fraction .6 --test-fraction .5": r"--valid-fraction is 0\.6: .*low 1",
    "--train two.tsv --vocabulary subword-nmt": r"--vocabulary is subword-nmt: Moses' tokeniser "
    "does not know ja; allowed: sentencepiece",
    "--train two.tsv --target-lang fr": r"--target-lang is fr; allowed: another",
    "--train two.tsv --target-lang f.r": r"--target-lang is f\.r; allowed: letters",
    "--train more.tsv --bpe-operations 9000": r"--bpe-operations is 9000: .* a value <= \d+; all",
}


@pytest.mark.parametrize("mistake", OWN_MISTAKES)
def test_mistake_with_own_pairs(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "half.fr", "x\n")
    write(tmp_path / "one.tsv", "a\tb\nonly\n")
    write(tmp_path / "two.tsv", "a\tb\nc\td\n")
    write(tmp_path / "more.tsv", "".join("\t".join(own(i)) + "\n" for i in range(60)))
    write_own("empty", [("x", ""), ("y", "")])
    write_own("uneven", [("a", "b")] * 2)
    write(tmp_path / "uneven.fr", "a\nb\nc\n")
    before = sorted(tmp_path.iterdir())
    assert run("dest", OWN, mistake, name="text", operations="")
    assert re.search(OWN_MISTAKES[mistake], line := one_line(capsys)), line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--source nowhere", r"--source is nowhere: no such folder; allowed: .*de-en.tgz"),
        ("--source .", r"--source is \.: holds no train.tags.de-en.de; allowed: a folder"),
        ("--source . --extra-train none", r"--extra-train is none: found nothing; allowed: a "),
    ],
)
def test_mistake_with_a_known_corpus(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert run("dest", words)
    assert re.search(message, line := one_line(capsys)), line
    assert not list(tmp_path.iterdir())
