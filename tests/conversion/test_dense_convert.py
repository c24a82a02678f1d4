"""``clusterformer convert`` takes folders of transformers: dense models become clustered ones."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402

import fairseq_clusterformer  # noqa: E402
from fairseq_clusterformer.inference.load import load_checkpoint  # noqa: E402
from tests.conversion.dense import ENGLISH, GERMAN, MAKERS, TEXT  # noqa: E402
from tests.inference.commands import error, run  # noqa: E402

WIDE = "taught(window=64,clusters=1,gap=0)+window(64)"  # wider than any text here


@pytest.fixture(scope="module", params=MAKERS)
def dense(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / request.param
    torch.manual_seed(1)
    MAKERS[request.param](folder)
    return folder


def texts(dense: Path, folder: Path) -> list[Path]:
    """Files to measure on."""
    (folder / "source.txt").write_text("\n".join(ENGLISH * 8) + "\n", encoding="utf-8")
    (folder / "target.txt").write_text("\n".join(GERMAN * 8) + "\n", encoding="utf-8")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    pair = [folder / "source.txt", folder / "target.txt"]
    return pair if dense.name in ("marian", "bart") else [folder / "text.txt"]


def test_the_same_outputs(dense: Path, tmp_path: Path) -> None:
    """Each head sees all; and the checkpoint needs nothing but its folder."""
    words = ["convert", dense, tmp_path / "out", "--attention", WIDE, "--tokens", 1500]
    words += ["--updates", 1, "--near-window", 8]
    assert run(*words, "--text", *texts(dense, tmp_path)) == 0
    assert run("export", dense, tmp_path / "bundle", "--to", "fairseq") == 0
    found, wanted = (
        load_checkpoint(path) for path in (tmp_path / "out" / "checkpoint.pt", tmp_path / "bundle")
    )
    assert found.folder == tmp_path / "out" / "data"
    attention = (found.model.decoder if dense.name == "gpt2" else found.model.encoder).layers[0]
    assert {heads.kind for heads in attention.self_attn.kinds} == {"taught", "window"}
    given = [torch.randint(4, len(wanted.task.source_dictionary) - 1, (2, 40))]
    if len(texts(dense, tmp_path)) == 2:
        begun = torch.cat([torch.full((2, 1), 2), given[0][:, :20]], dim=1)
        given += [torch.tensor([40, 40]), begun]
    with torch.no_grad():
        logits = [loaded.model(*given)[0] for loaded in (found, wanted)]
    there = logits[1][0, 0] > -1e3  # of words that the dense model has
    torch.testing.assert_close(logits[0][..., there], logits[1][..., there], rtol=1e-5, atol=1e-4)
    assert (
        run("export", tmp_path / "out" / "checkpoint.pt", tmp_path / "hf", "--to", "transformers")
        == 0
    )
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.model_type == "clusterformer"


def test_by_what_the_heads_do(dense: Path, tmp_path: Path) -> None:
    """Without --attention, it is measured; the clustered model writes, and is replaced whole."""
    words = ["convert", dense, tmp_path / "out", "--tokens", 1500, "--updates", 2, "--force"]
    words += [
        "--near-window",
        8,
        "--far-window",
        8,
        "--clusters",
        4,
        "--text",
        *texts(dense, tmp_path),
    ]
    assert run(*words) == 0
    assert run(*words) == 0
    report = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert report["checkpoint"] == str(dense)
    own = sorted(p.name for p in (tmp_path / "out" / "data").iterdir())
    assert report["data files"] == own
    model = fairseq_clusterformer.load(tmp_path / "out" / "checkpoint.pt", device="cpu")
    if dense.name == "gpt2":
        assert len(model.generate("The cat", max_tokens=5, seed=1)) > 7
    elif dense.name == "roberta":
        assert model.encode("A small cat")[0].shape[1] == 16
    else:
        assert len(model.translate(ENGLISH)) == len(ENGLISH)


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    transformers.BertConfig(vocab_size=20).save_pretrained(tmp_path / "bert")
    line = error(capsys, "convert", tmp_path / "bert", tmp_path / "out")
    assert "a model of the type bert; allowed: a folder of GPT-2, RoBERTa, Marian or BART" in line
    MAKERS["marian"](tmp_path / "marian")
    pair = texts(tmp_path / "marian", tmp_path)
    there = ("convert", tmp_path / "marian", tmp_path / "out")
    assert "a translation model; allowed: two files" in error(capsys, *there, "--text", pair[0])
    (tmp_path / "short.txt").write_text("Eins.\n")
    line = error(capsys, *there, "--text", pair[0], tmp_path / "short.txt")
    assert "24 and 1 lines; allowed: as many lines in both" in line
    assert "no split train" in error(capsys, *there)
    assert not (tmp_path / "out").exists()
