"""The translator: text in, text out, in order, whatever the batches."""

import io

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

import fairseq_clusterformer
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.translate import Translator, capitalize
from tests.cli.in_process import train
from tests.documents.commands import error as refused
from tests.documents.commands import run as run_command
from tests.documents.commands import usage_error
from tests.documents.conftest import PAIRS, TRAINING

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

GERMAN = [german for german, _ in PAIRS]
ENGLISH = [english.lower() for _, english in PAIRS]


def run(*arguments: object) -> int:
    return run_command("translate", "--cpu", *arguments)


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Lets the next call read this from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def error(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    return refused(capsys, "translate", "--cpu", *arguments)


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_lines_in_order(
    source, translation_model, translation_data, tmp_path, monkeypatch, capsys
):
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


def test_nbest_and_scores(translation_model, capsys):
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
def teacher_forced(translator: Translator, german: str, english: str) -> float:
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
def test_score_is_the_models(count, translation_models):
    """Also that of an ensemble, which averages probabilities."""
    files = sorted(map(str, translation_models.glob("checkpoint[0-9]*.pt")))[:count]
    translator = Translator(*map(load_checkpoint, files), device="cpu")
    assert len(translator.models) == count
    (found,) = translator.hypotheses([GERMAN[6]])[0]
    text = found.text
    assert text == ENGLISH[6]
    assert found.score == pytest.approx(teacher_forced(translator, GERMAN[6], text), rel=1e-3)


def test_lenpen_divides(translation_model):
    translator = fairseq_clusterformer.load(translation_model, device="cpu")
    length = len(translator.text.encode(ENGLISH[6], "en").split()) + 1
    (first,), (second,) = (translator.hypotheses([GERMAN[6]], lenpen=p)[0] for p in (1.0, 2.0))
    assert second.text == first.text
    assert second.score == pytest.approx(first.score / length, rel=1e-4)


def test_in_python(translation_model):
    translator = fairseq_clusterformer.load(translation_model, device="cpu")
    assert translator.translate(GERMAN[3]) == ENGLISH[3]
    texts = (text for text in [GERMAN[3], "", GERMAN[5]])
    found = translator.translate(texts, source="de", target="en", beam=2)
    assert found == [ENGLISH[3], "", ENGLISH[5]]
    with pytest.raises(UserError, match="-t is fr; allowed: en, which the model has"):
        translator.translate(GERMAN[3], target="fr")


def test_capitalize(translation_model, capsys):
    assert run("--checkpoint", translation_model, "--capitalize", GERMAN[0]) == 0
    assert capsys.readouterr().out == ENGLISH[0].capitalize() + "\n"
    assert capitalize('"él dijo: Ja"') == '"Él dijo: Ja"'
    assert capitalize("") == ""
    assert capitalize("5 dogs") == "5 dogs"


def test_unknown_characters_are_translated(translation_model, capsys):
    assert run("--checkpoint", translation_model, "Der Hund ☃ schläft.") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_too_long_is_refused_before_anything_is_translated(translation_model, monkeypatch, capsys):
    monkeypatch.setattr(TranslationTask, "inference_step", lambda *_: pytest.fail("translated"))
    long = " ".join(["Eis"] * 60)
    line = error(capsys, "--checkpoint", translation_model, GERMAN[0], "", long)
    assert "line 3 has " in line
    assert "allowed: 40 or fewer" in line


def test_mistakes(translation_model, translation_data, tmp_path, monkeypatch, capsys):
    model = ["--checkpoint", translation_model]
    assert "-s is fr; allowed: de" in error(capsys, *model, "-s", "fr", "Ja.")
    assert "-t is de; allowed: en" in error(capsys, *model, "-t", "de", "Ja.")
    assert "no such folder" in error(capsys, *model, "--data", tmp_path / "x", "Ja.")
    assert "--input is" in error(capsys, *model, "--input", tmp_path / "x")
    give(monkeypatch, "gut\nschön".encode("latin-1"))
    assert "stdin: line 2 is not UTF-8" in error(capsys, *model)
    for wrong in (["--nbest", "6"], ["--input", "x"], ["--beam", "0"], ["--lenpen", "nan"]):
        usage_error(capsys, "translate", *model, *wrong, "Ja.")

    state = torch.load(translation_model, weights_only=True)
    state["cfg"]["task"]["data"] = "gone"
    torch.save(state, tmp_path / "gone.pt")
    model = ["--checkpoint", tmp_path / "gone.pt"]
    line = error(capsys, *model, "Ja.")
    assert "--data is gone, as the checkpoint says: no such folder" in line
    assert run(*model, "--data", translation_data, GERMAN[0]) == 0
    assert capsys.readouterr().out == ENGLISH[0] + "\n"


def test_clustered_model(clustered_translator):
    translator = fairseq_clusterformer.load(clustered_translator, device="cpu")
    found = translator.hypotheses(GERMAN[:7], nbest=2, beam=2, batch_size=5)
    assert [len(hypotheses) for hypotheses in found] == [2] * 7
    (again,) = translator.hypotheses(GERMAN[6:7], nbest=2, beam=2)  # alone, not in a batch
    assert [each.text for each in again] == [each.text for each in found[6]]


def test_a_model_that_sees_the_future_is_refused(translation_data, tmp_path, capsys):
    line = f"{TRAINING} --arch clusterformer_tiny --decoder-attention neural --max-update 1"
    line += " --decoder-cluster-rule leaking-chunk --disable-validation"
    train(translation_data, line, tmp_path)
    last = tmp_path / "checkpoint_last.pt"
    assert "leaking-chunk" in error(capsys, "--checkpoint", last, GERMAN[0])


def test_more_tokens_than_a_batch_may_have(translation_model, capsys):
    line = ("--checkpoint", translation_model, "--max-tokens", 3, "--cpu")
    found = refused(capsys, "evaluate", "translation", *line)
    assert "--max-tokens is 3: the longest sentence has more; allowed: " in found


def test_models_of_an_ensemble_go_together(translation_model, tmp_path, capsys):
    state = torch.load(translation_model, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "en", "target_lang": "de"}
    torch.save(state, tmp_path / "other.pt")
    options = ["--checkpoint", translation_model, "--checkpoint", tmp_path / "other.pt", "Ja."]
    assert "allowed: models of the languages and dictionaries of" in error(capsys, *options)
