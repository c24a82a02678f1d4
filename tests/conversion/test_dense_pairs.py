"""Dense Marian and BART become ours: the same logits, the same translations."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: E402

import fairseq_clusterformer  # noqa: E402
from tests.conversion.dense import ENGLISH, bart, marian  # noqa: E402
from tests.inference.commands import error, run  # noqa: E402


@pytest.fixture(scope="module", params=[marian, bart])
def dense(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / request.param.__name__
    torch.manual_seed(3)
    request.param(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(dense: Path) -> Path:
    assert run("export", dense, dense.parent / "bundle", "--to", "fairseq") == 0
    return dense.parent / "bundle"


def theirs_of(dense: Path) -> tuple[transformers.PreTrainedModel, list[list[int]]]:
    """The dense model, and its tokens of the English sentences."""
    model = AutoModelForSeq2SeqLM.from_pretrained(dense).eval()
    read = AutoTokenizer.from_pretrained(dense)
    rows = [read(line)["input_ids"] for line in ENGLISH]
    if model.config.model_type == "bart":
        rows = [[0, *row, 2] for row in rows]
    return model, rows


def numbers_of(model: transformers.PreTrainedModel, bundle: Path) -> list[int]:
    """The dense model's number of each of our symbols; what it does not have is its padding."""
    config = model.config
    ours = fairseq_clusterformer.load(bundle, device="cpu").task.source_dictionary
    if config.model_type == "bart":
        assert ours.symbols[-1] == "<mask>"
        return list(range(config.vocab_size))
    numbers = json.loads((bundle.parent / "marian" / "vocab.json").read_text())
    numbers["<s>"] = config.pad_token_id
    return [numbers[symbol] for symbol in ours.symbols]


@torch.no_grad()
def test_the_same_logits(dense: Path, bundle: Path) -> None:
    model, rows = theirs_of(dense)
    ours = fairseq_clusterformer.load(bundle, device="cpu")
    numbers = numbers_of(model, bundle)
    for row, line in zip(rows, ENGLISH, strict=True):
        read = ours.task.source_dictionary.encode_line(
            ours.text.encode(line, ours.source), add_if_not_exist=False
        )
        tokens = read.long()[None]
        assert [numbers[i] for i in tokens[0]] == row  # the texts' tokens are the same, too
        written = torch.tensor([[2, *torch.randint(3, len(numbers), (9,))]])
        theirs = torch.tensor([[numbers[i] for i in written[0]]])
        theirs[:, 0] = model.config.decoder_start_token_id
        wanted = model(torch.tensor([row]), decoder_input_ids=theirs).logits[..., numbers]
        found = ours.model(tokens, torch.tensor([tokens.size(1)]), written)[0]
        there = [i for i in range(len(numbers)) if numbers[i] != model.config.pad_token_id]
        torch.testing.assert_close(found[..., there], wanted[..., there], rtol=1e-5, atol=1e-5)
        if model.config.model_type == "marian":
            assert found[..., 0].max() < -1e3  # <s>, which Marian does not have


@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_translations(dense: Path, bundle: Path, beam: int, tmp_path: Path) -> None:
    """By transformers from the dense model, from ours, and by fairseq."""
    model, rows = theirs_of(dense)
    numbers = numbers_of(model, bundle)
    assert run("export", bundle, tmp_path / "ours", "--to", "transformers") == 0
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    how = {"max_new_tokens": 30, "num_beams": beam, "early_stopping": True}
    how |= {"min_new_tokens": 1, "do_sample": False}
    wanted = []
    for row, line in zip(rows, ENGLISH, strict=True):
        eos, pad = model.config.eos_token_id, model.config.pad_token_id
        found = model.generate(
            torch.tensor([row]), forced_eos_token_id=eos, suppress_tokens=[pad], **how
        )
        given = tokenizer(line, return_tensors="pt")
        mine = ours.generate(**given, **how)
        assert [numbers[i] for i in mine[0, 1:]] == found[0, 1:].tolist()
        assert len(found[0]) > 4
        wanted.append(tokenizer.decode(mine[0], skip_special_tokens=True))
    fairseqs = fairseq_clusterformer.load(bundle, device="cpu")
    fairseqs.model.max_decoder_positions = lambda: 30  # texts end where those above end
    texts = [each[0].text for each in fairseqs.hypotheses(ENGLISH, beam=beam)]
    assert texts == wanted


def test_texts_end_where_the_positions_end(bundle: Path, tmp_path: Path) -> None:
    """By what the folder itself says, as by fairseq: these models write 48 tokens at most."""
    assert run("export", bundle, tmp_path / "ours", "--to", "transformers") == 0
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    ours.model.decoder.output_projection.bias.data[2] = -100  # no text ends by itself
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    found = ours.generate(**tokenizer(ENGLISH[0], return_tensors="pt"))
    assert found.shape == (1, 49)


@pytest.mark.parametrize(
    "text", [">>deu<< The cat.", ">>deu<<", ">> The cat.", "The >>deu<< cat."]
)
def test_a_text_may_ask_for_a_language(text: str, tmp_path: Path) -> None:
    """As Marians of several target languages read it."""
    marian(tmp_path / "marian")
    bundle = tmp_path / "bundle"
    assert run("export", tmp_path / "marian", bundle, "--to", "fairseq") == 0
    ours = fairseq_clusterformer.load(bundle, device="cpu").text.encode(text, "en")
    assert ours.split() == AutoTokenizer.from_pretrained(tmp_path / "marian").tokenize(text)


def test_an_empty_text_stays_empty(bundle: Path) -> None:
    """Also where a text begins by a symbol of its own, as BART's does."""
    model = fairseq_clusterformer.load(bundle, device="cpu")
    found = model.translate(["", ENGLISH[0], " "])
    assert found == ["", model.translate(ENGLISH[0]), ""]


def test_what_is_missing_or_other_is_one_line(
    dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = json.loads((dense / "config.json").read_text())
    there = ("export", tmp_path / "other", tmp_path / "out", "--to", "fairseq")
    (tmp_path / "other").mkdir()
    for file in dense.iterdir():
        if file.suffix not in (".model", ".spm"):
            (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    if config["model_type"] == "marian":
        assert "source.spm" in error(capsys, *there)
    config["activation_function"] = "tanh"
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    assert "its activation is tanh, not gelu_new" in error(capsys, *there)
    config["tie_word_embeddings"] = False
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    assert "its tie_word_embeddings is False, not True" in error(capsys, *there)
    assert not (tmp_path / "out").exists()
