"""BLEU: sacrebleu's own numbers, one by hand, and nothing scored that is not all there."""

import io
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from sacrebleu.metrics import BLEU

from fairseq_clusterformer.inference import generated as of_fairseq
from fairseq_clusterformer.inference.bleu import split_compounds
from fairseq_clusterformer.inference.bundle import write_bundle
from fairseq_clusterformer.inference.load import load_checkpoint
from fairseq_clusterformer.text import TextPipeline
from tests.inference.commands import error as refused
from tests.inference.commands import run as run_command
from tests.inference.conftest import PAIRS

# of the toy data's test split, which is the pairs backwards
REFERENCES = [english for _, english in PAIRS[::-1]]


def run(*arguments: object) -> int:
    return run_command("evaluate", "translation", *arguments)


def generated(hypotheses: list[str], references: list[str]) -> str:
    """What fairseq-generate prints: longest first, and other lines between."""
    lines = ["2026-11-20 10:00:00 | INFO | fairseq_cli.generate | loading model(s) from x.pt"]
    for i in reversed(range(len(hypotheses))):
        lines += [f"S-{i}\tquelle {i}", f"T-{i}\t{references[i]}"]
        lines += [f"H-{i}\t-0.25\t{hypotheses[i]}", f"D-{i}\t-0.25\t{hypotheses[i]} ."]
        lines += [f"H-{i}\t-0.75\tworse", f"P-{i}\t-0.5 -0.1"]
    lines += [
        f"x | INFO | Translated {len(hypotheses):,} sentences (9 tokens) in 0.1s",
        "Generate",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def toy_output(translation_data: Path, tmp_path: Path) -> tuple[Path, list[str], list[str]]:
    """A file of output for the toy test split with mistakes; the tokens in it, both sides."""
    pipeline = TextPipeline.from_folder(translation_data)
    references = [pipeline.encode(line, "en") for line in REFERENCES]
    hypotheses = [pipeline.encode(line.replace("The", "A"), "en") for line in REFERENCES]
    hypotheses[5] = ""
    assert any("@@ " in line for line in hypotheses)
    path = tmp_path / "generate-test.txt"
    path.write_text(generated(hypotheses, references))
    words = [[line.replace("@@ ", "") for line in lines] for lines in (hypotheses, references)]
    return path, *words


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """One sentence of 6 words for 7: 5, 3, 2 and 1 n-grams are right; exp(1 - 7/6) for brevity."""
    text = generated(["the c@@ at sat on a mat"], ["the c@@ at sat on the mat ."])
    (tmp_path / "out.txt").write_text(text)
    options = ["--generated", tmp_path / "out.txt", "--json", tmp_path / "out.json"]
    assert run(*options) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["scores"].values()
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert row["bleu"] == pytest.approx(expected, rel=1e-12)
    version = sacrebleu.__version__
    assert row["signature"] == f"nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:{version}"
    assert f"{expected:.2f}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("out.json*")] == ["out.json"]


def test_without_smoothing(tmp_path: Path) -> None:
    """As multi-bleu: 0 where no sequence of four is right."""
    (tmp_path / "out.txt").write_text(generated(["a b c d e"], ["a b c x e"]))
    options = ["--generated", tmp_path / "out.txt", "--json", tmp_path / "out.json"]
    assert run(*options) == 0
    assert json.loads((tmp_path / "out.json").read_text())["scores"]["tokenised"]["bleu"] == 0


def test_lower_cased_data(
    toy_output: tuple, translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, hypotheses, references = toy_output
    options = ["--generated", path, "--data", translation_data, "--json", tmp_path / "out.json"]
    assert run(*options) == 0
    out = capsys.readouterr().out
    assert "de-en, 16 sentences, lower-cased data" in out
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["lowercase"] is True
    assert record["references"] == str(translation_data / "raw" / "test.en")
    rows = record["scores"]
    assert list(rows) == ["tokenised", "sacreBLEU"]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    expected = metric.corpus_score(hypotheses, [references]).score
    assert 10 < expected < 90
    assert rows["tokenised"]["bleu"] == pytest.approx(expected, rel=1e-12)
    text = [line.replace("The", "A") for line in REFERENCES]
    text[5] = ""
    metric = BLEU(lowercase=True)
    expected = metric.corpus_score(text, [REFERENCES])
    assert rows["sacreBLEU"]["bleu"] == pytest.approx(expected.score, rel=1e-12)
    assert rows["sacreBLEU"]["signature"] == str(metric.get_signature())
    assert "case:lc" in rows["sacreBLEU"]["signature"]
    assert rows["sacreBLEU"]["signature"] in out


@pytest.mark.parametrize("way", ["stdin", "folder", "bpe removed", "upside down"])
def test_ways_in(
    way: str,
    toy_output: tuple,
    translation_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, *_ = toy_output
    options = ["--data", translation_data, "-t", "en", "--json"]
    assert run("--generated", path, *options, tmp_path / "one.json") == 0
    given, text = path, path.read_text()
    if way == "stdin":
        given = "-"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    elif way == "folder":
        given = path.parent
    elif way == "bpe removed":
        path.write_text(text.replace("@@ ", ""))
    else:  # the hypotheses of an n-best list stay in their order
        parts = text.split("S-")[1:]
        path.write_text("".join(f"S-{part}" for part in parts[::-1]))
    assert run("--generated", given, *options, tmp_path / "other.json") == 0
    one, other = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("one", "other"))
    assert one["scores"] == other["scores"]
    assert one["sentences"] == other["sentences"] == 16


@pytest.mark.parametrize("detokenised", [True, False])
def test_no_raw_references(
    detokenised: bool,
    toy_output: tuple,
    translation_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Also where the folder raw holds tokens, because the data's source did."""
    path, _, references = toy_output
    data = tmp_path / "data"
    shutil.copytree(translation_data, data)
    if detokenised:
        shutil.rmtree(data / "raw")
    else:
        (data / "raw" / "test.en").write_text("\n".join(references) + "\n")
    prepared = json.loads((data / "prepared.json").read_text())
    prepared["recipe"]["detokenised"] = detokenised
    (data / "prepared.json").write_text(json.dumps(prepared))
    assert run("--generated", path, "--data", data, "--json", tmp_path / "out.json") == 0
    assert f"{data} has no raw references of test.en" in capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["references"] == "tokens"
    text = [line.replace("The", "A") for line in REFERENCES]
    text[5] = ""
    expected = BLEU(lowercase=True).corpus_score(text, [REFERENCES]).score
    assert record["scores"]["sacreBLEU"]["bleu"] == pytest.approx(expected, rel=1e-12)


def test_reference_of_ones_own(toy_output: tuple, translation_data: Path, tmp_path: Path) -> None:
    path, *_ = toy_output
    text = [line.replace("The", "A") for line in REFERENCES]
    text[5] = ""
    (tmp_path / "own.en").write_text("\n".join(text) + "\n")
    options = ["--generated", path, "--data", translation_data, "--json", tmp_path / "out.json"]
    assert run(*options, "--reference", tmp_path / "own.en") == 0
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["scores"]["sacreBLEU"]["bleu"] == pytest.approx(100)
    assert record["scores"]["tokenised"]["bleu"] < 90


def test_compounds_are_split(tmp_path: Path) -> None:
    split = split_compounds
    # what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints
    assert split("a well-known x-y-z - b-") == (
        "a well ##AT##-##AT## known x ##AT##-##AT## y-z - b-"
    )
    assert split("ab-cd-ef @-@ -") == "ab ##AT##-##AT## cd ##AT##-##AT## ef @ ##AT##-##AT## @ -"
    hypotheses, references = ["a well-known old dog sleeps"], ["a well-read old dog sleeps"]
    (tmp_path / "out.txt").write_text(generated(hypotheses, references))
    options = ["--generated", tmp_path / "out.txt", "--json", tmp_path / "out.json"]
    assert run(*options, "--compound-split") == 0
    rows = json.loads((tmp_path / "out.json").read_text())["scores"]
    assert rows["tokenised"]["bleu"] == 0
    expected = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 0 / 4) ** 0.25
    assert rows["compound-split"]["bleu"] == pytest.approx(expected)
    assert rows["compound-split"]["precisions"] == pytest.approx([600 / 7, 400 / 6, 40, 0])


def test_bootstrap(toy_output: tuple, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, hypotheses, references = toy_output
    options = ["--generated", path, "--json", tmp_path / "out.json"]
    assert run(*options) == 0
    row = json.loads((tmp_path / "out.json").read_text())["scores"]["tokenised"]
    assert row["confidence"] is None
    assert run(*options, "--bootstrap") == 0
    row = json.loads((tmp_path / "out.json").read_text())["scores"]["tokenised"]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    shown = f"({row['confidence'][0]:.2f} ± {row['confidence'][1]:.2f})"
    assert result.format(score_only=True) == f"{row['bleu']:.2f} (μ = {shown[1:]}"
    assert shown in capsys.readouterr().out
    assert "bs:1000" in row["signature"]


def error(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    return refused(capsys, "evaluate", "translation", *arguments)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("H-3\t", "x\t", "1 of 16 hypotheses are missing (H-: 3)"),
        ("T-4\t", "x\t", "1 of 16 references are missing (T-: 4)"),
        ("Translated 16 ", "Translated 1,018 ", "1002 of 1018 hypotheses are missing (H-: 16, "),
    ],
)
def test_missing_sentences(
    old: str, new: str, says: str, toy_output: tuple, capsys: pytest.CaptureFixture
) -> None:
    path, *_ = toy_output
    path.write_text(path.read_text().replace(old, new))
    assert says in error(capsys, "--generated", path)


def test_mistakes(
    toy_output: tuple, translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, *_ = toy_output
    (tmp_path / "empty.txt").write_text("")
    line = error(capsys, "--generated", tmp_path / "empty.txt", "--json", tmp_path / "out.json")
    assert "no line begins with H-" in line
    assert not (tmp_path / "out.json").exists()
    assert "No such file" in error(capsys, "--generated", tmp_path / "absent.txt")
    options = ["--generated", path, "--data", translation_data]
    (tmp_path / "short.en").write_text("one\ntwo\n")
    line = error(capsys, *options, "--reference", tmp_path / "short.en")
    assert "it has 2 lines; allowed: 16" in line
    assert "-t is fr; allowed: de and en" in error(capsys, *options, "-t", "fr")
    assert str(tmp_path) in error(capsys, "--generated", path, "--data", tmp_path)
    line = error(capsys, "--checkpoint", tmp_path / "x.pt", "--data", translation_data)
    assert f"--checkpoint is {tmp_path / 'x.pt'}: no such file" in line
    path.write_text(generated(["\u2581the \u2581dog"], ["\u2581a \u2581dog"]))
    assert "with --data" in error(capsys, "--generated", path)
    for wrong in (
        ["--checkpoint", "x.pt"],
        ["--generated", path, "--reference", path],
        ["--generated", path, "--", "--fp16"],
    ):
        with pytest.raises(SystemExit):
            run(*wrong)
        assert "allowed" in capsys.readouterr().err.replace("\n", " ")


def test_the_direction_is_the_models(
    translation_data: Path,
    translation_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Whichever order the data's files have; the other direction is refused, not scored."""
    state = torch.load(translation_model, weights_only=False)
    state["cfg"]["task"] |= {"source_lang": "en", "target_lang": "de"}
    torch.save(state, tmp_path / "en-de.pt")
    commands = []
    monkeypatch.setattr(
        of_fairseq.subprocess,
        "run",
        lambda command, **options: commands.append(command) or SimpleNamespace(returncode=1),
    )
    options = ["--checkpoint", tmp_path / "en-de.pt", "--data", translation_data]
    assert run(*options, "--out", tmp_path) == 1
    source, target = (commands[0][commands[0].index(option) + 1] for option in ("-s", "-t"))
    assert (source, target) == ("en", "de")
    capsys.readouterr()
    line = error(capsys, *options, "-s", "de", "-t", "en")
    assert f"-s is de; allowed: en, which {tmp_path / 'en-de.pt'} has" in line
    (tmp_path / "model.pt").write_text("no checkpoint")
    line = error(capsys, "--checkpoint", tmp_path / "model.pt", "--data", translation_data)
    assert "cannot be read" in line


def test_failing_generation_is_told(
    translation_data: Path,
    translation_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    shutil.copy(translation_model, tmp_path / "model.pt")
    program = "import sys; print('first'); sys.exit('UnpicklingError: no checkpoint')"
    run_process = of_fairseq.subprocess.run
    monkeypatch.setattr(
        of_fairseq.subprocess,
        "run",
        lambda command, **options: run_process([*command[:2], "-c", program], **options),
    )
    options = ["--checkpoint", tmp_path / "model.pt", "--data", translation_data]
    assert run(*options) == 1
    log = tmp_path / "generated" / "generate-test.log"
    says = f"ended with status 1: UnpicklingError: no checkpoint; see {log}\n"
    assert capsys.readouterr().err.endswith(says)
    assert log.read_text().startswith("first")


def test_an_average_and_a_bundle_to_bleu(
    translation_data: Path,
    translation_models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Two epochs averaged, translated together with a bundle, and scored."""
    average, last = tmp_path / "average.pt", translation_models / "checkpoint_last.pt"
    options = ["--inputs", translation_models, "--num-epoch-checkpoints", 2, "--output", average]
    assert run_command("average", *options) == 0
    bundle = write_bundle(load_checkpoint(last), tmp_path / "bundle")
    given, out = f"{average}:{bundle}", tmp_path / "out"
    options = ["--checkpoint", given, "--data", translation_data, "--out", out, "--beam", 2]
    options += ["--batch-size", 8, "--json", tmp_path / "out.json"]
    assert run(*options, "--", "--cpu", "--no-progress-bar") == 0
    record = json.loads((tmp_path / "out.json").read_text())
    rows = record["scores"]
    shown = capsys.readouterr().out
    assert f"tokenised       {rows['tokenised']['bleu']:7.2f}" in shown
    assert all(row["bleu"] > 50 for row in rows.values())
    assert record["checkpoint"] == given
    assert record["beam"] == 2
    assert record["options"] == ["--cpu", "--no-progress-bar"]
    output = out / "generate-test.txt"
    assert "Generate test with beam=2:" in output.read_text()
    assert str(average) in output.with_suffix(".log").read_text()
    again = tmp_path / "again.json"
    assert run("--generated", output, "--data", translation_data, "--json", again) == 0
    assert json.loads(again.read_text())["scores"] == rows
