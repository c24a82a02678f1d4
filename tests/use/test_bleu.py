"""BLEU: sacrebleu's own numbers, one by hand, and those of what fairseq-generate prints."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.use.bleu import score, split_compounds, table
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
    split = split_compounds
    # what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints
    assert split("a well-known x-y-z - b-") == (
        "a well ##AT##-##AT## known x ##AT##-##AT## y-z - b-"
    )
    assert split("ab-cd-ef @-@ -") == "ab ##AT##-##AT## cd ##AT##-##AT## ef @ ##AT##-##AT## @ -"
    lines = ["a well-known old dog sleeps"], ["a well-read old dog sleeps"]
    rows = score(*lines, TextPipeline(), compound_split=True)
    assert rows["tokenised"]["bleu"] == 0
    expected = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 0 / 4) ** 0.25
    assert rows["compound-split"]["bleu"] == pytest.approx(expected)
    assert rows["compound-split"]["precisions"] == pytest.approx([600 / 7, 400 / 6, 40, 0])


def test_bootstrap():
    assert score(WRONG, REFERENCES, TextPipeline())["tokenised"]["confidence"] is None
    rows = score(WRONG, REFERENCES, TextPipeline(), bootstrap=True)
    row = rows["tokenised"]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(WRONG, [REFERENCES], n_bootstrap=1000)
    shown = f"({row['confidence'][0]:.2f} ± {row['confidence'][1]:.2f})"
    assert result.format(score_only=True) == f"{row['bleu']:.2f} (μ = {shown[1:]}"
    assert shown in table(rows)
    assert "bs:1000" in row["signature"]


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
    (tmp_path / "own.en").write_text("\n".join(WRONG) + "\n")
    record = numbers(tmp_path, *options, "--reference", tmp_path / "own.en")
    expected = BLEU(lowercase=True).corpus_score(REFERENCES, [WRONG]).score
    assert record["scores"]["sacreBLEU"]["bleu"] == pytest.approx(expected)
    assert record["scores"]["tokenised"]["bleu"] == pytest.approx(100)


def test_mistakes(translation_data, translation_model, tmp_path, capsys):
    def error(*words: object) -> str:
        written = ("--json", tmp_path / "out.json", "--out", tmp_path / "out")
        return refused(capsys, *COMMAND, *words, *written)

    options = ["--checkpoint", translation_model, "--data", translation_data]
    (tmp_path / "short.en").write_text("one\ntwo\n")
    line = error(*options, "--reference", tmp_path / "short.en")
    assert "it has 2 lines; allowed: 16" in line
    assert "--reference is x: No such file" in error(*options, "--reference", "x")
    assert "--split is test7: Dataset not found" in error(*options, "--split", "test7")
    assert "-t is fr; allowed: en, which the model has" in error(*options, "-t", "fr")
    assert "-s is en; allowed: de" in error(*options, "-s", "en", "-t", "de")
    line = error("--checkpoint", tmp_path / "x.pt", "--data", translation_data)
    assert f"--checkpoint is {tmp_path / 'x.pt'}: no such file" in line
    assert not (tmp_path / "out.json").exists()
    assert not (tmp_path / "out").exists()
