"""BLEU: sacrebleu's own numbers, one by hand, and those of what fairseq-generate prints."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import sacrebleu

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.use.translate import score, table
from tests.cli.in_process import generate
from tests.documents.commands import error as refused
from tests.documents.commands import run as run_command
from tests.documents.conftest import PAIRS

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
# of the toy data's test split, which is the pairs backwards
REFERENCES = [english for _, english in PAIRS[::-1]]
WRONG = [*[line.replace("The", "A") for line in REFERENCES[:5]], "", *REFERENCES[6:]]
COMMAND = ("evaluate", "translation", "--cpu")


def numbers(tmp_path: Path, *words: object) -> dict:
    """What the command writes."""
    path = tmp_path / "out.json"
    assert run_command(*COMMAND, *words, "--json", path) == 0
    assert [each.name for each in tmp_path.glob("out.json*")] == ["out.json"]
    return json.loads(path.read_text())


def test_by_hand():
    """One sentence of 6 words for 7: 5, 3, 2 and 1 n-grams are right; exp(1 - 7/6) for brevity."""
    rows = score(["the c@@ at sat on a mat"], ["the c@@ at sat on the mat ."], TextPipeline())
    (row,) = rows.values()
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert row["bleu"] == pytest.approx(expected, rel=1e-12)
    version = sacrebleu.__version__
    assert row["signature"] == f"nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:{version}"
    assert f"{expected:.2f}" in table(rows)
    # as multi-bleu: 0 where no sequence of four is right
    assert score(["a b c d e"], ["a b c x e"], TextPipeline())["tokenised"]["bleu"] == 0


def test_compounds_are_split():
    lines = ["a well-known old-old-dog sleeps"], ["a well-read old-old-dog sleeps"]
    rows = score(*lines, TextPipeline(), compound_split=True)
    assert rows["tokenised"]["bleu"] == 0
    # as perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' splits: 10 words, of which 9 are right
    found = rows["compound-split"]
    assert found["precisions"] == pytest.approx([90, 700 / 9, 62.5, 300 / 7])
    assert found["bleu"] == pytest.approx(100 * (9 / 10 * 7 / 9 * 5 / 8 * 3 / 7) ** 0.25)


def test_what_fairseq_generate_prints_is_scored(
    translation_data, clustered_translator, tmp_path, capsys
):
    """Translations and references of a split are fairseq's own, in the order of the data."""
    options = ["--checkpoint", clustered_translator, "--data", translation_data, "--beam", 3]
    record = numbers(tmp_path, *options, "--lenpen", 0.6, "--out", tmp_path / "out")
    shown = capsys.readouterr().out
    assert "test, de-en, 16 sentences, lower-cased data" in shown
    assert f"tokenised       {record['scores']['tokenised']['bleu']:7.2f}" in shown
    assert record["references"] == str(translation_data / "raw" / "test.en")
    line = "--task translation --beam 3 --lenpen 0.6"
    printed = "\n".join(generate(translation_data, clustered_translator, line, tmp_path / "of"))
    lines = []
    for kind in (r"H-(\d+)\t[^\t]*\t(.*)", r"T-(\d+)\t(.*)"):
        found = {int(number): tokens for number, tokens in re.findall(kind, printed)}
        lines.append([found[number] for number in range(16)])
    text = TextPipeline.from_folder(translation_data)
    assert record["scores"] == score(*lines, text, "en", REFERENCES)
    translations = (tmp_path / "out" / "test.en").read_text()
    assert translations == "".join(text.decode(line, "en") + "\n" for line in lines[0])


@pytest.mark.parametrize("detokenised", [True, False])
def test_no_raw_references(detokenised, translation_model, translation_data, tmp_path, capsys):
    """Also where the folder raw holds tokens, because the data's source did."""
    data = tmp_path / "data"
    shutil.copytree(translation_data, data)
    if detokenised:
        shutil.rmtree(data / "raw")
    else:
        (data / "raw" / "test.en").write_text("tokens\n" * 16)
    prepared = json.loads((data / "prepared.json").read_text())
    prepared["recipe"]["detokenised"] = detokenised
    (data / "prepared.json").write_text(json.dumps(prepared))
    options = ["--checkpoint", translation_model, "--data", data]
    record = numbers(tmp_path, *options)
    assert f"{data} has no raw references of test.en" in capsys.readouterr().out
    assert record["references"] == "tokens"
    assert record["scores"]["sacreBLEU"]["bleu"] == pytest.approx(100)


def test_mistakes(translation_data, translation_model, tmp_path, capsys):
    def error(*words: object) -> str:
        written = ("--json", tmp_path / "out.json", "--out", tmp_path / "out")
        return refused(capsys, *COMMAND, *words, *written)

    options = ["--checkpoint", translation_model, "--data", translation_data]
    shutil.copytree(translation_data, data := tmp_path / "data")
    (data / "raw" / "test.en").write_text("one\ntwo\n")
    line = error("--checkpoint", translation_model, "--data", data)
    assert f"{data}/raw/test.en has 2 lines; allowed: 16" in line
    assert "--split is test7: Dataset not found" in error(*options, "--split", "test7")
    assert not (tmp_path / "out.json").exists()
    assert not (tmp_path / "out").exists()
