"""Dense models of transformers become ours: the same logits and texts; and then clustered ones."""

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

import fairseq_clusterformer  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.conversion.batches import of_text  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.conversion.dense import ENGLISH, GERMAN, MAKERS, TEXT  # noqa: E402
from tests.documents.commands import error, run  # noqa: E402
from tests.models.bert import folder_of  # noqa: E402


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each family, and its bundle behind "-bundle"; and texts."""
    folder = tmp_path_factory.mktemp("dense")
    for name, make in MAKERS.items():
        torch.manual_seed(3)
        make(folder / name)
        assert run("export", folder / name, folder / f"{name}-bundle", "--to", "fairseq") == 0
    for name, lines in (("source", ENGLISH * 8), ("target", GERMAN * 8), ("text", [TEXT])):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


every_maker = pytest.mark.parametrize("name", sampled(MAKERS, ("gpt2", "marian")))


def texts(folders: Path, name: str) -> list[Path]:
    """Files to measure on."""
    files = ["source", "target"] if name in ("marian", "bart") else ["text"]
    return [folders / f"{file}.txt" for file in files]


@torch.no_grad()
def test_gpt2_has_the_same_probabilities(folders: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(folders / "gpt2").eval()
    read = AutoTokenizer.from_pretrained(folders / "gpt2")
    ours = fairseq_clusterformer.load(folders / "gpt2-bundle", device="cpu")
    text = "The small cat é ran,\ntold on"
    ids = torch.tensor([read(text, add_special_tokens=False)["input_ids"]])
    tokens = ours.coding.encode(text)
    assert ours.coding.decode(tokens.tolist()) == text
    assert tokens.tolist() == [4 + n - 1 for n in ids[0].tolist()]  # 0 is the end of a text
    wanted, found = theirs(ids).logits, ours.model(tokens[None])[0]
    torch.testing.assert_close(found[..., 4:], wanted[..., 1:], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[..., 2], wanted[..., 0], rtol=1e-5, atol=1e-4)
    probabilities = found.softmax(-1)[..., 4:]  # what the model does not have is never likely
    torch.testing.assert_close(probabilities, wanted.softmax(-1)[..., 1:], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_roberta_has_the_same_logits(folders: Path) -> None:
    ours = fairseq_clusterformer.load(folders / "roberta-bundle", device="cpu")
    read = AutoTokenizer.from_pretrained(folders / "roberta")
    tokens = torch.tensor([[0, *read("A small cat")["input_ids"], 2]])
    theirs = AutoModelForMaskedLM.from_pretrained(folders / "roberta").eval()
    torch.testing.assert_close(ours.model(tokens)[0], theirs(tokens).logits, rtol=1e-5, atol=1e-4)
    assert ours.encode("A small cat")[0].shape == (tokens.shape[1], 16)


@torch.no_grad()
def test_sentence_vectors_of_an_encoder(tmp_path: Path) -> None:
    """The mean of the states under the attention mask, as sentence-transformers has it."""
    folder = folder_of("bert", tmp_path / "bert")
    wanted = AutoModel.from_pretrained(folder).eval()
    read = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]", unk_token="[UNK]"
    )
    texts = ["A lake and a fish.", "cafés", "A café and Zürich's lake"]
    rows = read([f"[CLS] {text} [SEP]" for text in texts])
    given = read.pad(rows, return_tensors="pt")
    hidden = wanted(**given | {"token_type_ids": torch.zeros_like(given["input_ids"])})
    mask = given["attention_mask"].unsqueeze(-1)
    expected = (hidden.last_hidden_state * mask).sum(1) / mask.sum(1)
    assert run("export", folder, tmp_path / "ours", "--to", "fairseq") == 0
    found = fairseq_clusterformer.load(tmp_path / "ours").encode(texts, pooled=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def their_tokens(folder: Path) -> list[list[int]]:
    """Of the English sentences."""
    read = AutoTokenizer.from_pretrained(folder)
    rows = [read(line)["input_ids"] for line in ENGLISH]
    return [[0, *row, 2] for row in rows] if folder.name == "bart" else rows


def numbers_of(folder: Path) -> list[int]:
    """The dense model's number of each of our symbols; what it does not have is its padding."""
    if folder.name == "bart":
        return list(range(290))
    numbers = json.loads((folder / "vocab.json").read_text())
    ours = load_checkpoint(folder.with_name("marian-bundle")).task.source_dictionary
    return [numbers.get(symbol, numbers["<pad>"]) for symbol in ours.symbols]


@torch.no_grad()
@pytest.mark.parametrize("name", ["marian", "bart"])
def test_pairs_have_the_same_logits(name: str, folders: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(folders / name).eval()
    ours = fairseq_clusterformer.load(folders / f"{name}-bundle", device="cpu")
    numbers = numbers_of(folders / name)
    for row, line in zip(their_tokens(folders / name), ENGLISH, strict=True):
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
        if name == "marian":
            assert found[..., 0].max() < -1e3  # <s>, which Marian does not have


@pytest.mark.parametrize("name", ["marian", pytest.param("bart", marks=pytest.mark.whole)])
def test_the_same_translations(name: str, folders: Path, tmp_path: Path) -> None:
    """By transformers from the dense model, from ours, and by fairseq."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folders / name).eval()
    numbers, bundle = numbers_of(folders / name), folders / f"{name}-bundle"
    assert run("export", bundle, tmp_path / "ours", "--to", "transformers") == 0
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    fairseqs = fairseq_clusterformer.load(bundle, device="cpu")
    fairseqs.model.max_decoder_positions = lambda: 30  # texts end where those below end
    eos, pad = model.config.eos_token_id, model.config.pad_token_id
    others = []
    for beam in (1, 4):
        how = {"max_new_tokens": 30, "num_beams": beam, "early_stopping": True}
        how |= {"min_new_tokens": 1, "do_sample": False}
        wanted = []
        for row, line in zip(their_tokens(folders / name), ENGLISH, strict=True):
            given = {"forced_eos_token_id": eos, "suppress_tokens": [pad], **how}
            found = model.generate(torch.tensor([row]), **given)
            mine = ours.generate(**tokenizer(line, return_tensors="pt"), **how)
            assert [numbers[i] for i in mine[0, 1:]] == found[0, 1:].tolist()
            assert len(found[0]) > 4
            wanted.append(tokenizer.decode(mine[0], skip_special_tokens=True))
        found = fairseqs.translate(ENGLISH, beam=beam)
        others += [text for text, theirs in zip(found, wanted, strict=True) if text != theirs]
    assert len(others) <= 1  # where scores tie: the model is random


def test_a_text_may_ask_for_a_language(folders: Path) -> None:
    """As Marians of several target languages read it."""
    ours = fairseq_clusterformer.load(folders / "marian-bundle", device="cpu").text
    theirs = AutoTokenizer.from_pretrained(folders / "marian")
    for text in (">>deu<< The cat.", ">>deu<<", ">> The cat.", "The >>deu<< cat."):
        assert ours.encode(text, "en").split() == theirs.tokenize(text)


@every_maker
def test_clusters_that_see_all_change_nothing(name: str, folders: Path, tmp_path: Path) -> None:
    """And the checkpoint needs nothing but its folder."""
    wide = "taught(window=64,clusters=1,gap=0)+window(64)"  # wider than any text here
    words = ["convert", folders / name, tmp_path / "out", "--attention", wide, "--tokens", 1500]
    words += ["--updates", 1, "--near-window", 8, "--text", *texts(folders, name)]
    assert run(*words) == 0
    checkpoint = tmp_path / "out" / "checkpoint.pt"
    found, wanted = (load_checkpoint(path) for path in (checkpoint, folders / f"{name}-bundle"))
    assert found.folder == tmp_path / "out" / "data"
    attention = (found.model.decoder if name == "gpt2" else found.model.encoder).layers[0]
    assert {heads.kind for heads in attention.self_attn.kinds} == {"taught", "window"}
    given = [torch.randint(4, len(wanted.task.source_dictionary) - 1, (2, 40))]
    if name in ("marian", "bart"):
        begun = torch.cat([torch.full((2, 1), 2), given[0][:, :20]], dim=1)
        given += [torch.tensor([40, 40]), begun]
    with torch.no_grad():
        logits = [loaded.model(*given)[0] for loaded in (found, wanted)]
    there = logits[1][0, 0] > -1e3  # of words that the dense model has
    torch.testing.assert_close(logits[0][..., there], logits[1][..., there], rtol=1e-5, atol=1e-4)


@every_maker
def test_clusters_by_what_the_heads_do(name: str, folders: Path, tmp_path: Path) -> None:
    """Without --attention, it is measured; the clustered model writes, and is replaced whole."""
    words = ["convert", folders / name, tmp_path / "out", "--tokens", 1500, "--updates", 1]
    words += ["--near-window", 8, "--far-window", 8, "--clusters", 4, "--force"]
    for _ in range(2 if name == "gpt2" else 1):
        assert run(*words, "--text", *texts(folders, name)) == 0
    report = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert report["checkpoint"] == str(folders / name)
    model = fairseq_clusterformer.load(tmp_path / "out" / "checkpoint.pt", device="cpu")
    if name == "gpt2":
        assert len(model.generate("The cat", max_tokens=5, seed=1)) > 7
    elif name == "roberta":
        assert model.encode("A small cat")[0].shape[1] == 16
    else:
        assert len(model.translate(ENGLISH)) == len(ENGLISH)


@torch.no_grad()
def test_positions_of_a_longer_encoder_are_repeated(folders: Path, tmp_path: Path) -> None:
    """And one cluster, which shows all, loses nothing."""
    words = ["convert", folders / "roberta", tmp_path / "out", "--max-positions", 100]
    words += ["--attention", "taught(window=128,clusters=1,gap=0)", "--near-window", 8]
    assert run(*words, "--updates", 0, "--tokens", 400, "--text", *texts(folders, "roberta")) == 0
    paths = folders / "roberta-bundle", tmp_path / "out" / "checkpoint.pt"
    dense, longer = (load_checkpoint(path).model.eval() for path in paths)
    tokens = torch.randint(4, 280, (2, 60))
    torch.testing.assert_close(longer(tokens)[0], dense(tokens)[0], rtol=1e-4, atol=1e-4)
    given, own = (
        next(x for name, x in model.named_parameters() if name.endswith("embed_positions.weight"))
        for model in (dense, longer)
    )
    assert torch.equal(own, torch.cat([given, given[2:38]]))
    assert longer(tokens.repeat(1, 2)[:, :100])[0].isfinite().all()


def test_rows_of_a_masked_text(folders: Path) -> None:
    loaded = load_checkpoint(folders / "roberta-bundle")
    rows = of_text(loaded, texts(folders, "roberta") * 2, 10**6, 24, seed=1)
    lengths = torch.cat([batch["src_tokens"].ne(1).sum(1) for batch in rows])
    assert torch.equal(lengths, torch.cat([batch["src_lengths"] for batch in rows]))
    assert lengths.max() == 24
    assert lengths.unique().numel() == 2  # the end of each text is shorter
    assert max(batch["src_tokens"].numel() for batch in rows) <= 2048 < lengths.sum()


def test_mistakes_are_one_line(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    transformers.BertConfig(vocab_size=20).save_pretrained(tmp_path / "bert")
    transformers.T5Config(vocab_size=20).save_pretrained(tmp_path / "t5")
    back = ("--to", "fairseq")
    for words in (("convert", "--text", tmp_path / "t5" / "config.json"), ("export", *back)):
        line = error(capsys, words[0], tmp_path / "t5", out, *words[1:])
        assert "a model of the type t5; allowed: a folder of GPT-2, BERT, RoBERTa, Mar" in line
    assert "tokenizer.json" in error(capsys, "export", tmp_path / "bert", out, *back)
    for name in ("marian", "bart", "gpt2"):
        shutil.copytree(folders / name, other, dirs_exist_ok=True)
        config, there = json.loads((other / "config.json").read_text()), ("export", other, out)
        if name == "marian":
            (other / "source.spm").unlink()
            assert "source.spm" in error(capsys, *there, "--to", "fairseq")
        for option, value, problem in (
            ("activation_function", "mish", "its activation is mish, not gelu, relu"),
            ("tie_word_embeddings", False, "its tie_word_embeddings is False, not True"),
            ("decoder_layers" if name != "gpt2" else "n_layer", 10**6, "layers is 1000000, and"),
            ("vocab_size", 10**9, "its options ask for a tensor of [1000000000, "),
        ):
            (other / "config.json").write_text(json.dumps(config | {option: value}))
            assert problem in error(capsys, *there, "--to", "fairseq")
    source, target = texts(folders, "marian")
    there = ("convert", folders / "marian", out)
    assert "a translation model; allowed: two files" in error(capsys, *there, "--text", source)
    (tmp_path / "short.txt").write_text("Eins.\n")
    line = error(capsys, *there, "--text", source, tmp_path / "short.txt")
    assert "has 1 lines" in line
    assert "--text is not given" in error(capsys, *there)
    assert not out.exists()
