"""The translator: text in, text out, in order, whatever the batches."""

import io
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.cli import translate
from tests.inference.conftest import PAIRS, TRAINING, train

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

GERMAN = [german for german, _ in PAIRS]
ENGLISH = [english.lower() for _, english in PAIRS]


def run(*arguments: object) -> int:
    return translate.main([str(argument) for argument in arguments])


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Lets the next call read this from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def error(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """The one line that a refused call prints."""
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert "allowed: " in line
    return line


def test_sentences(translation_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert run("--checkpoint", translation_model, GERMAN[3], GERMAN[8]) == 0
    assert capsys.readouterr().out.splitlines() == [ENGLISH[3], ENGLISH[8]]


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_lines_in_order(
    source: str,
    translation_model: Path,
    translation_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Long and short in turn, in batches that do not divide them, with empty lines between."""
    content = ("\n" + "\n".join(GERMAN) + "\n \n" + GERMAN[0]).encode()
    options = ["--checkpoint", translation_model, "--data", translation_data, "--batch-size", 3]
    if source == "file":
        (tmp_path / "text.de").write_bytes(content)
        options += ["--input", tmp_path / "text.de"]
    else:
        give(monkeypatch, content)
    assert run(*options, "-s", "de", "-t", "en") == 0
    assert capsys.readouterr().out == "\n" + "\n".join(ENGLISH) + "\n\n" + ENGLISH[0] + "\n"


def test_nothing_in_nothing_out(
    translation_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    give(monkeypatch, b"")
    assert run("--checkpoint", translation_model) == 0
    assert capsys.readouterr().out == ""


def test_nbest_and_scores(translation_model: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--checkpoint", translation_model, "--nbest", 2, "--scores", "--beam", 3]
    assert run(*options, GERMAN[3], "", GERMAN[5]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[2:4] == ["", ""]
    scores, texts = zip(*(line.split("\t") for line in lines[:2] + lines[4:]), strict=True)
    assert texts[::2] == (ENGLISH[3], ENGLISH[5])
    assert texts[1] != texts[0]
    assert float(scores[1]) < float(scores[0]) <= 0


@torch.no_grad()
def teacher_forced(translator: translate.Translator, german: str, english: str) -> float:
    """Mean log2 probability of a translation's subwords, end included; of several models' mean."""
    task = translator.task
    source, target = (
        dictionary.encode_line(translator.text.encode(line, lang), add_if_not_exist=False).long()
        for dictionary, line, lang in (
            (task.source_dictionary, german, "de"),
            (task.target_dictionary, english, "en"),
        )
    )
    before = torch.cat([target[-1:], target[:-1]])
    probabilities = torch.zeros(len(target), dtype=torch.float64)
    for model in translator.models:
        out = model(source[None], torch.tensor([len(source)]), before[None])
        likely = model.get_normalized_probs(out, log_probs=False)[0]
        probabilities += likely.gather(-1, target[:, None])[:, 0] / len(translator.models)
    return float(probabilities.log2().mean())


@pytest.mark.parametrize("count", [1, 2])
def test_score_is_the_models(count: int, translation_models: Path) -> None:
    """Also that of an ensemble, which averages probabilities."""
    files = sorted(map(str, translation_models.glob("checkpoint[0-9]*.pt")))[:count]
    translator = translate.Translator(files)
    assert len(translator.models) == count
    ((points, text),) = translator.translate([GERMAN[6]])[0]
    assert text == ENGLISH[6]
    assert points == pytest.approx(teacher_forced(translator, GERMAN[6], text), rel=1e-3)


def test_lenpen_divides(translation_model: Path) -> None:
    one = translate.Translator([str(translation_model)], lenpen=1.0)
    two = translate.Translator([str(translation_model)], lenpen=2.0)
    length = len(one.text.encode(ENGLISH[6], "en").split()) + 1
    (first,), (second,) = one.translate([GERMAN[6]])[0], two.translate([GERMAN[6]])[0]
    assert second[1] == first[1]
    assert second[0] == pytest.approx(first[0] / length, rel=1e-4)


def test_capitalize(translation_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert run("--checkpoint", translation_model, "--capitalize", GERMAN[0]) == 0
    assert capsys.readouterr().out == ENGLISH[0].capitalize() + "\n"
    assert translate.capitalize('"él dijo: Ja"') == '"Él dijo: Ja"'
    assert translate.capitalize("") == ""
    assert translate.capitalize("5 dogs") == "5 dogs"


def test_unknown_characters_are_translated(
    translation_model: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run("--checkpoint", translation_model, "Der Hund ☃ schläft.") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_too_long_is_refused_before_anything_is_translated(
    translation_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(
        translate.TranslationTask, "inference_step", lambda *_: pytest.fail("translated")
    )
    long = " ".join(["Eis"] * 60)
    line = error(capsys, "--checkpoint", translation_model, GERMAN[0], "", long)
    assert "line 3 has " in line
    assert "allowed: 40 or fewer" in line


def test_mistakes(
    translation_model: Path,
    translation_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    model = ["--checkpoint", translation_model]
    assert "is nowhere.pt: no such file" in error(capsys, "--checkpoint", "nowhere.pt", "Ja.")
    assert "-s is fr; allowed: de" in error(capsys, *model, "-s", "fr", "Ja.")
    assert "-t is de; allowed: en" in error(capsys, *model, "-t", "de", "Ja.")
    assert "no such folder" in error(capsys, *model, "--data", tmp_path / "x", "Ja.")
    assert "--input is" in error(capsys, *model, "--input", tmp_path / "x")
    (tmp_path / "text.pt").write_text("no checkpoint")
    assert "cannot be loaded" in error(capsys, "--checkpoint", tmp_path / "text.pt", "Ja.")
    give(monkeypatch, "gut\nschön".encode("latin-1"))
    assert "stdin, line 2: is not UTF-8" in error(capsys, *model)
    for wrong in (["--nbest", "6", "Ja."], ["--input", "x", "Ja."], ["--beam", "0", "Ja."]):
        with pytest.raises(SystemExit):
            run(*model, *wrong)
        assert "allowed: " in capsys.readouterr().err.replace("\n", " ")

    moved = translation_data.with_name("moved")
    translation_data.rename(moved)
    try:
        line = error(capsys, *model, "Ja.")
        assert f"--data is {translation_data}, as --checkpoint says: no such folder" in line
        assert run(*model, "--data", moved, GERMAN[0]) == 0
        assert capsys.readouterr().out == ENGLISH[0] + "\n"
    finally:
        moved.rename(translation_data)


def test_clustered_model(translation_data: Path, tmp_path: Path) -> None:
    line = f"{TRAINING} --arch clusterformer_tiny --max-update 2"
    train(translation_data, line, tmp_path)
    translator = translate.Translator([str(tmp_path / "checkpoint_last.pt")], beam=2, batch_size=5)
    found = translator.translate(GERMAN[:7], nbest=2)
    assert [len(hypotheses) for hypotheses in found] == [2] * 7
    again = translator.translate(GERMAN[6:7], nbest=2)[0]  # alone, not in a batch
    assert [text for _, text in again] == [text for _, text in found[6]]
