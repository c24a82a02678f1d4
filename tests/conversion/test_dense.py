"""Dense models of transformers become ours: the same logits, and then clustered ones."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402

import fairseq_clusterformer  # noqa: E402
from tests.conversion.dense import TEXT  # noqa: E402
from tests.conversion.dense import gpt2 as make_gpt2  # noqa: E402
from tests.conversion.dense import roberta as make_roberta  # noqa: E402
from tests.inference.commands import error, run  # noqa: E402


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "gpt2"
    make_gpt2(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(gpt2: Path) -> Path:
    assert run("export", gpt2, gpt2.parent / "bundle", "--to", "fairseq") == 0
    return gpt2.parent / "bundle"


@torch.no_grad()
def test_gpt2_has_the_same_probabilities(gpt2: Path, bundle: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval()
    read = transformers.AutoTokenizer.from_pretrained(gpt2)
    ours = fairseq_clusterformer.load(bundle, device="cpu")
    text = "The small cat é ran,\ntold on"
    ids = torch.tensor([read(text, add_special_tokens=False)["input_ids"]])
    tokens = ours.coding.encode(text)
    assert ours.coding.decode(tokens.tolist()) == text
    assert tokens.tolist() == [4 + n - 1 for n in ids[0].tolist()]  # 0 is the end of a text
    wanted = theirs(ids).logits
    found = ours.model(tokens[None])[0]
    torch.testing.assert_close(found[..., 4:], wanted[..., 1:], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[..., 2], wanted[..., 0], rtol=1e-5, atol=1e-4)
    probabilities = found.softmax(-1)[..., 4:]  # what the model does not have is never likely
    torch.testing.assert_close(probabilities, wanted.softmax(-1)[..., 1:], rtol=1e-4, atol=1e-6)


def test_gpt2_becomes_clustered(bundle: Path, tmp_path: Path) -> None:
    """With a window as long as the text, nothing changes."""
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["convert", bundle, tmp_path / "out", "--text", tmp_path / "text.txt"]
    words += ["--attention", "window(64)+taught(window=64,clusters=1,gap=0)", "--updates", 1]
    assert run(*words, "--tokens", 2048, "--near-window", 16) == 0
    checkpoint = tmp_path / "out" / "checkpoint.pt"
    clustered = fairseq_clusterformer.load(checkpoint, data=bundle, device="cpu")
    dense = fairseq_clusterformer.load(bundle, device="cpu")
    tokens = dense.coding.encode(TEXT)[None, :60]
    with torch.no_grad():
        found, wanted = (model.model(tokens)[0] for model in (clustered, dense))
    torch.testing.assert_close(found[..., 4:], wanted[..., 4:], rtol=1e-4, atol=1e-4)
    assert len(clustered.generate("The cat", max_tokens=5, seed=1)) > 7


@torch.no_grad()
def test_roberta_has_the_same_logits(tmp_path: Path) -> None:
    make_roberta(tmp_path / "roberta")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "roberta")
    assert run("export", tmp_path / "roberta", tmp_path / "bundle", "--to", "fairseq") == 0
    ours = fairseq_clusterformer.load(tmp_path / "bundle", device="cpu")
    tokens = torch.tensor([[0, *tokenizer("A small cat")["input_ids"], 2]])
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "roberta").eval()
    wanted = theirs(tokens).logits
    torch.testing.assert_close(ours.model(tokens)[0], wanted, rtol=1e-5, atol=1e-4)
    assert ours.encode("A small cat")[0].shape == (tokens.shape[1], 16)


def test_other_models_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    transformers.BertConfig(vocab_size=20).save_pretrained(tmp_path / "bert")
    line = error(capsys, "export", tmp_path / "bert", tmp_path / "out", "--to", "fairseq")
    assert "a model of the type bert; allowed: a folder of GPT-2, RoBERTa" in line
    transformers.GPT2Config(vocab_size=20).save_pretrained(tmp_path / "empty")
    assert "CHECKPOINT is" in error(
        capsys, "export", tmp_path / "empty", tmp_path / "out", "--to", "fairseq"
    )
