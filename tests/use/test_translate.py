"""The translator: text in, text out, in order, whatever the batches."""

import io

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

import fairseq_clusterformer
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.translate import Translator
from tests.cli.in_process import train
from tests.documents.commands import error as refused
from tests.documents.commands import run, usage_error
from tests.documents.conftest import PAIRS, TRAINING

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

COMMAND = ("translate", "--cpu", "--checkpoint")
GERMAN = [german for german, _ in PAIRS]
ENGLISH = [english.lower() for _, english in PAIRS]


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Lets the next call read this from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_lines_in_order(
    source, translation_model, translation_data, tmp_path, monkeypatch, capsys
):
    """Long and short in turn, in batches that do not divide them, with empty lines between."""
    content = ("\n" + "\n".join(GERMAN) + "\n \n" + GERMAN[0]).encode()
    words = [*COMMAND, translation_model, "--data", translation_data, "--batch-size", 3]
    if source == "file":
        (tmp_path / "text.de").write_bytes(content)
        words += ["--input", tmp_path / "text.de"]
    else:
        give(monkeypatch, content)
    assert run(*words, "-s", "de", "-t", "en") == 0
    assert capsys.readouterr().out == "\n" + "\n".join(ENGLISH) + "\n\n" + ENGLISH[0] + "\n"


def test_in_python(translation_models, clustered_translator):
    """One text, any iterable of them, an ensemble; a clustered model in a batch and alone."""
    first, second = sorted(translation_models.glob("checkpoint[0-9]*.pt"))
    translator = fairseq_clusterformer.load(first, device="cpu")
    assert translator.translate(GERMAN[3]) == ENGLISH[3]
    texts = (text for text in [GERMAN[3], "", GERMAN[5]])
    found = translator.translate(texts, source="de", target="en", beam=2)
    assert found == [ENGLISH[3], "", ENGLISH[5]]
    how = {"beam": 20, "batch_size": 1}
    short, long = (translator.translate(GERMAN[3], lenpen=power, **how) for power in (-9, 9))
    assert len(short) < len(long)
    with pytest.raises(UserError, match="-t is fr; allowed: en, which the model has"):
        translator.translate(GERMAN[3], target="fr")
    both = Translator(*map(load_checkpoint, (first, second)), device="cpu", dtype="bfloat16")
    assert [next(model.parameters()).dtype for model in both.models] == 2 * [torch.bfloat16]
    assert both.translate(GERMAN[6]) == ENGLISH[6]
    clustered = fairseq_clusterformer.load(clustered_translator, device="cpu")
    together = clustered.translate(GERMAN[:7], beam=2, batch_size=5)
    assert clustered.translate(GERMAN[6], beam=2) == together[6]


def test_too_long_is_refused_before_anything_is_translated(translation_model, monkeypatch, capsys):
    monkeypatch.setattr(TranslationTask, "inference_step", lambda *_: pytest.fail("translated"))
    long = " ".join(["Eis"] * 60)
    line = refused(capsys, *COMMAND, translation_model, GERMAN[0], "", long)
    assert "line 3 has " in line
    assert "allowed: 40 or fewer" in line


def test_mistakes(translation_model, translation_data, tmp_path, monkeypatch, capsys):
    model = [*COMMAND, translation_model]
    for words, said in (
        (["-s", "fr", "Ja."], "-s is fr; allowed: de"),
        (["-t", "de", "Ja."], "-t is de; allowed: en"),
        (["--input", tmp_path / "x"], "--input is"),
    ):
        assert said in refused(capsys, *model, *words)
    give(monkeypatch, "gut\nschön".encode("latin-1"))
    assert "stdin: line 2 is not UTF-8" in refused(capsys, *model)
    for wrong in (["--input", "x"], ["--beam", "0"], ["--lenpen", "nan"]):
        usage_error(capsys, *model, *wrong, "Ja.")
    words = ("--checkpoint", translation_model, "--max-tokens", 3, "--cpu")
    found = refused(capsys, "evaluate", "translation", *words)
    assert "--max-tokens is 3: the longest sentence has more; allowed: " in found
    state = torch.load(translation_model, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "en", "target_lang": "de"}
    torch.save(state, tmp_path / "other.pt")
    line = refused(capsys, *model, "--checkpoint", tmp_path / "other.pt", "Ja.")
    assert "allowed: models of the languages and dictionaries of" in line


def test_a_model_that_sees_the_future_is_refused(translation_data, tmp_path, capsys):
    line = f"{TRAINING} --arch clusterformer_tiny --decoder-attention neural --max-update 1"
    line += " --decoder-cluster-rule leaking-chunk --disable-validation"
    train(translation_data, line, tmp_path)
    assert "leaking-chunk" in refused(capsys, *COMMAND, tmp_path / "checkpoint_last.pt", GERMAN[0])
