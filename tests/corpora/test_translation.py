"""Translation data: every pair accounted for, both directions, nothing half-made."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from fairseq.data import Dictionary, indexed_dataset

from fairseq_clusterformer.cli.prepare import translation as prepare_mt
from fairseq_clusterformer.corpora.download import Archive
from fairseq_clusterformer.corpora.translation import build as mt_build
from fairseq_clusterformer.corpora.translation import corpora as mt_corpora
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.text import TextPipeline

LANGUAGES = ("de", "en")
TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def run(*arguments, name="iwslt14"):
    """Run a script in this process, with few merges to learn."""
    if "--bpe-operations" not in arguments:
        arguments = (*arguments, "--bpe-operations", 30)
    return prepare_mt.main([name, *map(str, arguments)])


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_pairs(prefix, pairs, end=""):
    """Write PREFIX.de and PREFIX.en, one line a pair."""
    for side, lang in zip(zip(*pairs, strict=True), LANGUAGES, strict=True):
        write(Path(f"{prefix}.{lang}{end}"), "".join(f"{line}\n" for line in side))


def record_of(dest):
    return json.loads((dest / "prepared.json").read_text())


def subwords_of(dest, split, lang):
    """Return the lines of a binarised split, from nothing but what is in the folder."""
    dictionary = Dictionary.load(str(dest / f"dict.{lang}.txt"))
    items = indexed_dataset.make_dataset(str(dest / f"{split}.de-en.{lang}"), "mmap")
    assert all(item[-1] == dictionary.eos() for item in items)
    return [" ".join(dictionary[i] for i in item[:-1]) for item in items]


def words_of(dest, split):
    """Return the pairs of tokens of a binarised split."""
    text = TextPipeline.from_folder(dest)
    sides = [map(text.words, subwords_of(dest, split, lang)) for lang in LANGUAGES]
    return list(zip(*sides, strict=True))


def raw_of(dest, split):
    sides = [(dest / "raw" / f"{split}.{lang}").read_text().split("\n") for lang in LANGUAGES]
    assert all(side.pop() == "" for side in sides)
    return list(zip(*sides, strict=True))


QUOTES = ("das ist &quot; gut &quot; .", "it &apos;s good .")


def caption(number):
    """Return a raw pair; its digits stand alone, so that 0 to 9 are all the subwords it needs."""
    digits = " ".join(str(number))
    return f"Der Mann {digits} geht.", f"The man {digits} walks."


def lower_caption(number):
    """Return the same pair's tokens."""
    return tuple(line.lower().replace(".", " .") for line in caption(number))


@pytest.fixture
def tokenised(tmp_path):
    """IWSLT14's files as they are handed on: split, tokenised, lower case."""
    folder = tmp_path / "tokenised"
    write_pairs(folder / "train.sample.de-en", [*map(lower_caption, range(40)), QUOTES], ".gz")
    write_pairs(folder / "valid.de-en", [lower_caption(i) for i in range(100, 110)])
    write_pairs(folder / "test.de-en", [QUOTES] * 2)
    return folder


@pytest.fixture
def talks(tmp_path):
    """IWSLT14's archive, unpacked: 1 title, 1 description, 50 lines; two segments a test."""
    folder = tmp_path / "talks" / "de-en"
    for i, lang in enumerate(LANGUAGES):
        lines = ["<url>http://x</url>", "<keywords>talks, a</keywords>", "<talkid>1</talkid>"]
        lines += [f"<title>Men & man {lang}</title>", "<description>TED: It's</description>"]
        lines += [caption(n)[i] for n in range(20)]
        lines += [("man " * 176).strip(), "man " * 175, "", ("a a a", "a a")[i]]
        lines += [("a a a a", "a a")[i], *(caption(n)[i] for n in range(20, 45))]
        write(folder / f"train.tags.de-en.{lang}", "\n".join(lines) + "\n")
        for test in TALKS:
            name = f"IWSLT14.{test}.de-en.{lang}.xml"
            text = '<?xml version="1.0"?>\n<doc docid="1">\n<title>Not this</title>\n'
            text += f'<seg id="1"> {test} sagt’s “{lang}” </seg>\n'
            text += '<seg id="2">Man & men</seg>\n</doc>\n'
            write(folder / name, text)
    return tmp_path / "talks"


# IWSLT14


def test_talks_lose_their_markup_and_every_23rd_pair_is_valid(talks, tmp_path):
    dest = tmp_path / "dest"
    assert run(dest, "--source", talks) == 0
    kept = [("men &amp; man de", "men &amp; man en"), ("ted : it &apos; s", "ted : it &apos;s")]
    kept += [lower_caption(n) for n in range(20)]
    kept += [("man " * 174 + "man",) * 2, ("a a a", "a a")]
    kept += [lower_caption(n) for n in range(20, 45)]
    assert words_of(dest, "valid") == kept[22:46:23]
    assert words_of(dest, "train") == kept[:22] + kept[23:45] + kept[46:]
    assert record_of(dest)["splits"]["train"] == {
        "pairs": 47,
        "dropped by length": 3,
        "de subwords": sum(len(line.split()) + 1 for line in subwords_of(dest, "train", "de")),
        "en subwords": sum(len(line.split()) + 1 for line in subwords_of(dest, "train", "en")),
    }
    assert raw_of(dest, "valid")[1] == caption(41)
    tests = []
    for test in TALKS:
        tests += [tuple(f"{test} sagt's “{lang}”" for lang in LANGUAGES), ("Man & men",) * 2]
    assert raw_of(dest, "test") == tests
    assert words_of(dest, "test")[1] == ("man &amp; men",) * 2
    assert record_of(dest)["recipe"]["detokenised"] is True


def test_packed_talks_give_the_same(talks, tmp_path):
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "de-en.tgz", "w:gz") as archive:
        archive.add(talks / "de-en", "de-en")
    one, other = tmp_path / "one", tmp_path / "other"
    assert run(one, "--source", talks) == run(other, "--source", tmp_path / "packed") == 0
    assert files_of(one) == files_of(other)


def files_of(dest):
    return {
        str(path.relative_to(dest)): path.read_bytes()
        for path in dest.rglob("*")
        if path.is_file()
    }


def test_tokenised_text_is_taken_as_it_is(tokenised, tmp_path):
    dest = tmp_path / "dest"
    assert run(dest, "--source", tokenised) == 0
    assert words_of(dest, "train") == [*map(lower_caption, range(40)), QUOTES]
    assert words_of(dest, "valid") == [lower_caption(i) for i in range(100, 110)]
    assert words_of(dest, "test") == raw_of(dest, "test") == [QUOTES] * 2
    assert record_of(dest)["recipe"] == {
        "corpus": "iwslt14",
        "languages": ["de", "en"],
        "tokenizer": "moses",
        "normalize_punctuation": False,
        "dash_splits": False,
        "escape": True,
        "lowercase": True,
        "bpe": "subword_nmt",
        "bpe_model": "bpe.codes",
        "bpe_operations": 30,
        "test_sets": {"test": "dev2010+dev2012+tst2010+tst2011+tst2012"},
        "detokenised": False,
        "hold_out": None,
        "cleaning": {"unit": "tokens", "most": 175, "ratio": 1.5},
        "extra_train": {},
    }
    text = TextPipeline.from_folder(dest)  # raw text comes to the same subwords
    assert text.encode('Das ist "gut".', "de") == subwords_of(dest, "test", "de")[0]
    assert text.decode(subwords_of(dest, "test", "en")[0], "en") == "it's good."


# What fairseq reads


@pytest.mark.parametrize(("source", "target"), [LANGUAGES, LANGUAGES[::-1]])
def test_loads_in_the_translation_task_both_ways(tokenised, tmp_path, source, target):
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    dest = tmp_path / "dest"
    assert run(dest, "--source", tokenised) == 0
    task = TranslationTask.setup_task(
        TranslationConfig(
            data=str(dest),
            source_lang=source,
            target_lang=target,
            train_subset="train",
            dataset_impl="mmap",
            required_seq_len_multiple=1,
        )
    )
    assert task.source_dictionary == task.target_dictionary
    for split, size in (("train", 41), ("valid", 10), ("test", 2)):
        task.load_dataset(split)
        assert len(task.dataset(split)) == size
    pair = task.dataset("valid")[3]
    words = TextPipeline.from_folder(dest).words
    found = {
        lang: words(task.source_dictionary.string(pair[side]))
        for lang, side in ((source, "source"), (target, "target"))
    }
    assert (found["de"], found["en"]) == lower_caption(103)


def test_is_what_fairseq_preprocess_makes(tokenised, tmp_path):
    from fairseq import options
    from fairseq_cli import preprocess

    dest, theirs = tmp_path / "dest", tmp_path / "theirs"
    assert run(dest, "--source", tokenised) == 0
    for split in ("train", "valid", "test"):
        lines = [subwords_of(dest, split, lang) for lang in LANGUAGES]
        write_pairs(tmp_path / split, zip(*lines, strict=True))
    arguments = f"-s en -t de --joined-dictionary --destdir {theirs}".split()
    arguments += [f"--{split}pref={tmp_path / split}" for split in ("train", "valid", "test")]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    for lang in LANGUAGES:
        name = f"dict.{lang}.txt"
        assert (dest / name).read_bytes() == (theirs / name).read_bytes()
        for split in ("train", "valid", "test"):
            for end in ("bin", "idx"):
                ours = (dest / f"{split}.de-en.{lang}.{end}").read_bytes()
                assert ours == (theirs / f"{split}.en-de.{lang}.{end}").read_bytes()


# Text to subwords and back


@pytest.mark.parametrize(
    ("options", "lang", "line", "tokens", "back"),
    [
        ({}, "en", "It's  a “two-year-old”.", "It 's a “ two-year-old ” .", None),
        ({"normalize_punctuation": True}, "de", "Er sagt: „Ja!“", 'Er sagt : " Ja ! "', None),
        ({"dash_splits": True}, "en", "two-year-old", "two @-@ year @-@ old", "two-year-old"),
        ({"escape": True}, "en", "B & C's [x]", "B &amp; C &apos;s &#91; x &#93;", "B & C's [x]"),
        ({"lowercase": True}, "de", "Ein Käse, groß.", "ein käse , groß .", "ein käse, groß."),
        ({"tokenizer": "none"}, "de", " Ein\u00a0 Käse,\tja. ", "Ein Käse,ja.", None),
    ],
)
def test_pipeline_there_and_back(tmp_path, options, lang, line, tokens, back):
    write(tmp_path / "bpe.codes", "#version: 0.2\no l\nol d</w>\n")
    text = TextPipeline(LANGUAGES, model=tmp_path / "bpe.codes", **options)
    if options == {"tokenizer": "none"}:
        tokens = "Ein Käse, ja."
    assert text.tokens(line, lang) == tokens
    assert text.words(text.encode(line, lang)) == tokens
    assert len(text.encode("x old", lang).split()) == 2
    if back:
        assert text.decode(text.encode(line, lang), lang) == back


def test_pipeline_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(UserError, match="no folder of translation data .*prepare_multi30k.sh"):
        TextPipeline.from_folder(tmp_path)
    with pytest.raises(UserError, match="language 'fr': allowed is de or en"):
        TextPipeline().tokens("Bonjour", "fr")
    with pytest.raises(UserError, match="tokenizer 'perl': allowed is moses or none"):
        TextPipeline(tokenizer="perl")
    with pytest.raises(UserError, match="None: no such file; needed for subword_nmt"):
        TextPipeline().encode("Hallo", "de")


def test_sentencepiece_takes_text_without_tokens(talks, tmp_path):
    dest = tmp_path / "dest"
    options = "--vocabulary", "sentencepiece", "--bpe-operations", 290
    assert run(dest, "--source", talks, *options) == 0
    recipe = record_of(dest)["recipe"]
    assert (recipe["bpe"], recipe["bpe_model"]) == ("sentencepiece", "sentencepiece.model")
    assert recipe["tokenizer"] == "none"
    assert words_of(dest, "train")[3] == ("der mann 1 geht.", "the man 1 walks.")
    text = TextPipeline.from_folder(dest)
    assert text.decode(text.encode("Ein ☃,  the Man.", "en"), "en") == "ein ☃, the man."
    dictionary = Dictionary.load(str(dest / "dict.de.txt"))
    assert (dest / "dict.en.txt").read_bytes() == (dest / "dict.de.txt").read_bytes()
    assert not any(dictionary.unk_word in line for line in subwords_of(dest, "test", "de"))


# More training text


def test_extra_pairs_come_to_train_unless_held_out(tokenised, tmp_path):
    dest = tmp_path / "dest"
    write_pairs(tmp_path / "more", [caption(200), caption(105), ("", "x"), caption(201)], ".gz")
    columns = "Hi there.\tHallo du.\tsource\nThe man 1 0 5 walks.\tEin anderer Mann ging fort.\n"
    columns += "A cat.\tA cat.\n"
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("deu.txt", columns)
        archive.writestr("_about.txt", "not pairs")
    extra = "--extra-train", tmp_path / "more", "--extra-train", tmp_path / "pairs.zip"
    assert run(dest, "--source", tokenised, *extra) == 0
    more = [lower_caption(200), lower_caption(201), ("hallo du .", "hi there ."), ("a cat .",) * 2]
    assert words_of(dest, "train")[41:] == more
    count = record_of(dest)["splits"]["train"]
    assert (count["pairs"], count["extra pairs"]) == (45, 4)
    assert (count["extra in valid or test"], count["dropped by length"]) == (2, 1)
    assert set(record_of(dest)["recipe"]["extra_train"]) == {
        f"{tmp_path.name}/{name}" for name in ("more.de.gz", "more.en.gz", "pairs.zip")
    }


# Multi30k and WMT14


@pytest.fixture
def multi30k(tmp_path):
    """Multi30k's files, and their descriptions as `mt_corpora` has them."""
    names = {"train": range(30), "val": [50], "test_2016_flickr": [60, 61]}
    for name, numbers in (names | {"test_2017_flickr": [70]}).items():
        write_pairs(tmp_path / "multi30k" / name, map(caption, numbers), ".gz")
    archives = []
    for path in sorted((tmp_path / "multi30k").iterdir()):
        checksum = "sha256:" + sha256(path.read_bytes()).hexdigest()
        archives.append(Archive(path.as_uri(), checksum, {path.name: checksum}))
    return archives


@pytest.mark.parametrize("form", ["files", "download"])
def test_multi30k_has_two_tests(multi30k, tmp_path, form):
    source = tmp_path / "multi30k" if form == "files" else None
    dest = tmp_path / "dest"
    corpus = mt_corpora.multi30k(source, multi30k)
    mt_build.prepare(dest, corpus, bpe_operations=20)
    assert words_of(dest, "train") == [lower_caption(n) for n in range(30)]
    assert words_of(dest, "test1") == [lower_caption(70)]
    assert raw_of(dest, "valid") == [caption(50)]
    assert raw_of(dest, "test") == [caption(60), caption(61)]
    assert record_of(dest)["recipe"]["test_sets"] == {"test": "test2016", "test1": "test2017"}
    assert not (tmp_path / "dest.partial").exists()


def test_changed_multi30k_is_refused(multi30k, tmp_path):
    write(tmp_path / "multi30k" / "val.en.gz", "Changed.\n")
    corpus = mt_corpora.multi30k(tmp_path / "multi30k", multi30k)
    with pytest.raises(UserError, match="val.en.gz: sha256 of its .* is .*, must be "):
        mt_build.prepare(tmp_path / "dest", corpus, bpe_operations=20)
    assert [path.name for path in tmp_path.iterdir()] == ["multi30k"]


def test_wmt14_is_cleaned_by_subwords_and_keeps_its_case(tmp_path):
    folder, dest = tmp_path / "wmt", tmp_path / "dest"
    digits = [" ".join(str(number)) for number in range(298)]
    pairs = [(f"Das ist-es {number}.", f"It is-so {number}.") for number in digits]
    letters = [chr(ord("A") + i) for i in range(26)]  # 20 tokens of some 26 subwords:
    long = " ".join("".join(random.sample(letters, 26)) for _ in range(20))
    write_pairs(folder / "europarl-v7.de-en", pairs[:150])
    write_pairs(folder / "commoncrawl.de-en", [(long, long), *pairs[150:200]])
    write_pairs(folder / "news-commentary-v9.de-en", [*pairs[200:], ("", "Nothing.")])
    with tarfile.open(folder / "test-full.tgz", "w:gz") as archive:
        for name, text in (("ref.de", "Ein <b>-Test."), ("src.en", "A test’s end.")):
            segment = f'<srcset>\n<seg id="1">{text}</seg>\n'
            path = write(tmp_path / f"newstest2014-deen-{name}.sgm", segment)
            archive.add(path, f"test-full/{path.name}")
    assert run(dest, "--source", folder, "--bpe-operations", 60, name="wmt14_en2de") == 0
    lines = [*pairs[:150], (long, long), *pairs[150:], ("", "Nothing.")]
    assert raw_of(dest, "valid") == [lines[99], lines[199], lines[299]][:2]  # the third is empty
    assert len(words_of(dest, "valid")) == 2
    expected = [pair for i, pair in enumerate(lines) if (i + 1) % 100 and pair != (long, long)]
    text = TextPipeline.from_folder(dest)
    assert words_of(dest, "train") == [
        tuple(text.tokens(line, lang) for line, lang in zip(pair, LANGUAGES, strict=True))
        for pair in expected
    ]
    assert words_of(dest, "train")[0] == ("Das ist @-@ es 0 .", "It is @-@ so 0 .")
    assert raw_of(dest, "test") == [("Ein <b>-Test.", "A test’s end.")]
    assert record_of(dest)["splits"]["train"]["dropped by length"] == 1


def test_tokenised_wmt14_knows_its_sides(tmp_path):
    folder, dest = tmp_path / "wmt", tmp_path / "dest"
    for name, pairs in (("train", range(20)), ("val", [30]), ("test", [40])):
        for side, i in (("tgt", 0), ("src", 1)):
            text = "".join(f"{caption(n)[i]} &quot;\n" for n in pairs)
            write(folder / f"{side}-{name}.txt", text)
    assert run(dest, "--source", folder, name="wmt14_en2de") == 0
    assert words_of(dest, "valid") == [tuple(f"{line} &quot;" for line in caption(30))]
    assert len(words_of(dest, "train")) == 20


# Run again, interruptions, several processes


def test_second_run_does_nothing_and_says_so(tokenised, tmp_path, capsys):
    dest = tmp_path / "dest"
    assert run(dest, "--source", tokenised) == 0
    before = {path: path.stat().st_mtime_ns for path in dest.rglob("*")}
    capsys.readouterr()
    assert run(dest, "--source", tokenised) == 0
    assert f"{dest} is already prepared" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in dest.rglob("*")} == before
    assert run(dest, "--source", tokenised, "--bpe-operations", 31) == 1
    assert "was prepared with bpe_operations 30, not 31" in capsys.readouterr().err
    (dest / "raw" / "test.en").write_text("")
    assert run(dest, "--source", tokenised) == 1
    assert "raw/test.en is no longer as prepared" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["_tokenise", "learn_subwords", "_segment", "_binarise"])
def test_interrupted_run_leaves_nothing_and_the_next_completes(
    tokenised, tmp_path, monkeypatch, capsys, stage
):
    dest = tmp_path / "dest"
    original = getattr(mt_build, stage)

    def interrupted(*arguments):
        original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mt_build, stage, interrupted)
        assert run(dest, "--source", tokenised) == 130
    assert "run it again to finish" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tokenised"]
    assert run(dest, "--source", tokenised) == 0
    assert len(words_of(dest, "train")) == 41


def test_several_processes_give_the_same(talks, tmp_path, monkeypatch):
    monkeypatch.setattr(mt_build, "_BATCH", 20)
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(one, "--source", talks) == run(two, "--source", talks, "--workers", 2) == 0
    assert files_of(one) == files_of(two)


# Mistakes: one line that names the file, the value and what is allowed

MISTAKES = {
    "unequal": (
        {"valid.de-en.en": "x\n" * 9},
        r"de-en.de has 10 lines and .*en has 9; allowed",
    ),
    "more": ({"valid.de-en.en": "x\n" * 12}, r"has 10 lines and .*en has 12; allowed is the same"),
    "Latin-1": ({"test.de-en.de": b"a\ncaf\xe9\n"}, r"test.de-en.de: line 2: byte 0xE9 is not"),
    "broken": ({"train.sample.de-en.de.gz": b"no gz"}, r"de\.gz: cannot be read after line 0"),
    "missing": ({"test.de-en.en": None}, r"0 files for test in en; allowed is one, test\.de-en"),
    "two": ({"train.de-en.en": b"x\n"}, r"2 files for train in en; allowed is one"),
    "empty": ({"valid.de-en.de": b"", "valid.de-en.en": b""}, r"iwslt14: no pair for valid"),
    "all dropped": (
        {"train.sample.de-en.en.gz": gzip.compress(b"\n" * 41)},
        r"no pair for train, 41 dropped by their lengths; allowed is one or more",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_file_is_told(tokenised, tmp_path, capsys, mistake):
    files, message = MISTAKES[mistake]
    for name, content in files.items():
        if content is None:
            (tokenised / name).unlink()
        else:
            (tokenised / name).write_bytes(content.encode() if type(content) is str else content)
    assert run(tmp_path / "dest", "--source", tokenised) == 1
    told = capsys.readouterr().err.splitlines()
    assert re.match(f"prepare_iwslt14.sh: error: .*{message}", told[-1]), told
    assert [path.name for path in tmp_path.iterdir()] == ["tokenised"]


OPTIONS = {
    "no folder": ("--source nowhere", r"--source nowhere: no such folder; allowed is .*de-en.tgz"),
    "wrong folder": (
        "--source .",
        r"--source \.: not found; allowed is a folder that holds train",
    ),
    "operations": ("--bpe-operations 0", r"--bpe-operations: '0'; allowed: a whole number"),
    "vocabulary": ("--vocabulary bpe", r"--vocabulary: .*'bpe' .*subword-nmt.*sentencepiece"),
    "option": ("--lower", r"unrecognized arguments: --lower; usage: prepare_iwslt14.sh"),
    "no extra": (
        "--source {source} --extra-train none",
        r"--extra-train none: found nothing; allowed is a PREFIX .*English<TAB>German",
    ),
    "half an extra": ("--source {source} --extra-train half", r"half: found half\.de; allowed"),
    "one column": (
        "--source {source} --extra-train one.tsv",
        r"one\.tsv: line 2: 'only' ?; allowed is English<TAB>German",
    ),
    "pieces": (
        "--source {source} --vocabulary sentencepiece --bpe-operations 9000",
        r"--bpe-operations 9000: allowed is at most \d+ for this text",
    ),
}


@pytest.mark.parametrize("mistake", OPTIONS)
def test_mistaken_option_is_told(tokenised, tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "half.de", "x\n")
    write(tmp_path / "one.tsv", "a\tb\nonly\n")
    arguments, message = OPTIONS[mistake]
    try:
        status = run("dest", *arguments.format(source=tokenised).split())
    except SystemExit as error:
        status = error.code
    told = capsys.readouterr().err.splitlines()
    assert status
    assert re.match(f"prepare_iwslt14.sh: error: .*{message}", told[-1]), told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.de", "one.tsv", "tokenised"]


@pytest.mark.parametrize("corpus", ["multi30k", "iwslt14", "wmt14_en2de"])
def test_help_says_what_cannot_be_verified(capsys, corpus):
    with pytest.raises(SystemExit):
        prepare_mt.main([corpus, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(f"usage: prepare_{corpus}.sh")
    assert ("cannot be verified" in told) == (corpus != "multi30k")


def test_script_works_from_anywhere(tokenised, tmp_path, capsys):
    assert run(tmp_path / "out" / "dest", "--source", tokenised) == 0
    assert "\r" not in "".join(capsys.readouterr())  # no progress bars where nobody looks
    for corpus in ("multi30k", "iwslt14", "wmt14_en2de"):
        script = (SCRIPTS / f"prepare_{corpus}.sh").read_text()
        assert f'prepare_mt.py" {corpus} "$@"' in script
    script = ["bash", SCRIPTS / "prepare_iwslt14.sh", "out/dest", "--source", "tokenised"]
    done = subprocess.run(
        [*script, "--bpe-operations", "30"],
        env={**os.environ, "PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "out/dest is already prepared\n"), done.stderr
