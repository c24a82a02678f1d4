"""``clusterformer export``: a folder of transformers and back, with the same bits and tokens."""

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from fairseq.models import MODEL_DATACLASS_REGISTRY  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)

import fairseq_clusterformer  # noqa: E402
from fairseq_clusterformer.checkpoints.bundle import SHIPPED  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.models.options import defaults_of  # noqa: E402
from fairseq_clusterformer.use.perplexity import in_one_pass, split_blocks  # noqa: E402
from tests.cli.in_process import (  # noqa: E402
    CLUSTERFORMER,
    QUESTIONS,
    assert_equal_states,
    train,
    trained,
)
from tests.cli.towns import squad, towns_data, towns_reader  # noqa: E402, F401  fixtures
from tests.documents.commands import error, run  # noqa: E402

TRANSLATOR = "multi30k-de-en"
GERMAN = [
    "Ein Hund rennt am Strand.",
    "Zwei Männer in roten Hemden spielen im Park Fußball und lachen dabei laut.",
    "Eine Frau.",
    "Kinder springen ins Wasser, während ihre Eltern zuschauen.",
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The translator that comes with the package."""
    folder = tmp_path_factory.mktemp("exported") / "translator"
    assert run("export", TRANSLATOR, folder, "--to", "transformers") == 0
    return folder


word_checkpoint = trained("word_data", CLUSTERFORMER, "--max-update", 2)


@pytest.mark.parametrize(("unit", "bos", "begin"), [("bytes", False, []), ("words", True, [0, 2])])
def test_a_language_model_is_fairseqs(unit, bos, begin, checkpoint, word_checkpoint, tmp_path):
    """Tensors, how a text begins (--add-bos-token), perplexity, and greedy text; also after the
    way back."""
    state = torch.load(checkpoint if unit == "bytes" else word_checkpoint, weights_only=True)
    state["cfg"]["task"]["add_bos_token"] = bos
    torch.save(state, tmp_path / "model.pt")
    out = tmp_path / "out"
    assert run("export", tmp_path / "model.pt", out, "--to", "transformers") == 0
    ours = fairseq_clusterformer.load(tmp_path / "model.pt", device="cpu")
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    assert_equal_states(ours.model.state_dict(), model.model.state_dict())
    read = AutoTokenizer.from_pretrained(out)
    source, target = next(iter(split_blocks(ours.loaded, "train")))
    if unit == "bytes":  # whose first block alone begins by </s>
        source, target = source[1:], target[1:]
    text = read.decode(source, skip_special_tokens=True)
    assert read(text)["input_ids"] == source.tolist()
    assert read("")["input_ids"] == begin
    assert source.tolist()[: len(begin)] == begin
    with torch.no_grad():
        found = model(source[None]).logits.log_softmax(-1)[:, -len(target) :]
    wanted = in_one_pass(ours.model, source[None], target[None])
    torch.testing.assert_close(found.gather(-1, target[None, :, None])[..., 0], wanted)
    prompt = text[:40].rpartition(" ")[0]
    assert read(prompt)["input_ids"] == ours._given(prompt, "prompt", 1).tolist()
    text = ours.generate(prompt, max_tokens=12, temperature=0)
    given = read(prompt, return_tensors="pt")
    written = model.generate(**given, max_new_tokens=12, do_sample=False)[0]
    assert read.decode(written, skip_special_tokens=True) == text
    if unit == "words":  # without a prompt
        assert model.generate(max_new_tokens=3)[0, : len(begin)].tolist() == begin
    with torch.no_grad():  # what was fine-tuned comes back
        model.get_input_embeddings().weight[7] += 1
    model.save_pretrained(tmp_path / "tuned")
    read.save_pretrained(tmp_path / "tuned")
    assert run("export", tmp_path / "tuned", tmp_path / "bundle", "--to", "fairseq") == 0
    again = fairseq_clusterformer.load(tmp_path / "bundle", device="cpu")
    assert_equal_states(again.model.state_dict(), model.model.state_dict())
    assert again._given("a", "text", 1)[:-1].tolist() == begin


def test_a_translator_is_fairseqs(exported):
    """The same tokens, by beam search and greedily, of a batch padded on the right."""
    ours = fairseq_clusterformer.load(TRANSLATOR, device="cpu")
    model = AutoModelForSeq2SeqLM.from_pretrained(exported).eval()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    given = tokenizer(GERMAN, return_tensors="pt", padding=True)
    for beam in (1, 5):
        found = model.generate(**given, num_beams=beam)
        texts = tokenizer.batch_decode(found, skip_special_tokens=True)
        assert texts == ours.translate(GERMAN, beam=beam)
    english = tokenizer(text_target="a dog runs.")["input_ids"]
    assert tokenizer.decode(english, skip_special_tokens=True) == "a dog runs."


def test_there_and_back_is_the_same_bundle(exported, tmp_path):
    """Every file byte by byte, but for what says by which versions it was made."""
    out = tmp_path / "bundle"
    assert run("export", exported, out, "--to", "fairseq", "--dtype", "float16") == 0
    shipped = {path.name: path for path in (SHIPPED / TRANSLATOR).iterdir()}
    assert {path.name for path in out.iterdir()} - {".clusterformer"} == shipped.keys()
    for name, path in shipped.items():
        if name != "bundle.json":
            assert (out / name).read_bytes() == path.read_bytes(), name
    one, other = (json.loads(p.read_text()) for p in (out / "bundle.json", shipped["bundle.json"]))
    for record in (one, other):
        del record["made by"]
        record.pop("files", None)  # which earlier versions wrote
        record["cfg"]["task"]["eval_bleu"] = False  # a loaded model scores no translations
    model, shipped_model = (record["cfg"]["model"] for record in (one, other))
    newer = model.keys() - shipped_model.keys()  # options that came since, at their defaults
    defaults = defaults_of(MODEL_DATACLASS_REGISTRY["clusterformer"])
    assert {name: model.pop(name) for name in newer} == {name: defaults[name] for name in newer}
    assert one == other


def test_a_reader_reads_as_ours(tmp_path):
    """The tokens of the preparation, and the same logits, where the title, a document's first
    line, stands before each paragraph, which tokenizer.json cannot say; test_pretrained.py has
    readers without titles."""
    source, out = squad(12, 3), tmp_path / "out"
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v2.0.json").write_text(json.dumps(source))
    line = ["prepare", "qa", "squad2", tmp_path / "data", "--source", tmp_path, "--titles"]
    assert run(*line) == 0
    train(tmp_path / "data", QUESTIONS, tmp_path / "run", "--max-update", 1)
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    assert run("export", checkpoint, out, "--to", "transformers") == 0
    assert not (out / "tokenizer.json").exists()
    tokenizer, loaded = AutoTokenizer.from_pretrained(out), load_checkpoint(checkpoint)
    model = AutoModelForQuestionAnswering.from_pretrained(out).eval()
    loaded.task.load_dataset("valid")
    dataset, title = loaded.task.dataset("valid"), source["data"][0]["title"]
    for i, paragraph in enumerate(source["data"][0]["paragraphs"]):
        document = f"{title}\n{paragraph['context']}"
        given = tokenizer(paragraph["qas"][0]["question"], document, return_tensors="pt")
        prepared = dataset.collater([dataset[i]])["net_input"]
        parts = [given["input_ids"][given["token_type_ids"] == part][None] for part in (0, 1)]
        for part, name in zip(parts, ("question_tokens", "document_tokens"), strict=True):
            assert torch.equal(part, prepared[name])
        with torch.no_grad():
            found, wanted = model(**given), loaded.model(*parts)[0]
        first = found.start_logits[given["token_type_ids"] == 1]
        lowest = torch.finfo(first.dtype).min
        torch.testing.assert_close(first, wanted.start[0].clamp(min=lowest), rtol=0, atol=1e-5)
        torch.testing.assert_close(found.type_logits, wanted.type, rtol=0, atol=1e-5)
        start, end = model.spans(**given)[0].tolist()
        assert tokenizer.decode(given["input_ids"][0, start:end], skip_special_tokens=True)
    ids = tokenizer("?", "\nA b.\nC.")["input_ids"]  # an empty title, or line, and two paragraphs
    assert ids.count(tokenizer.bos_token_id) == 3
    assert title not in tokenizer.decode(ids)
    assert run("export", out, tmp_path / "back", "--to", "fairseq") == 0
    states = []
    for each in (load_checkpoint(tmp_path / "back"), loaded):  # no memory bank, which trains alone
        state = each.model.state_dict().items()
        states.append({n: t for n, t in state if isinstance(t, torch.Tensor)})
    assert_equal_states(*states)


def test_cards(checkpoint, exported, tmp_path, capsys):
    """And --force replaces its own files alone."""
    card = (exported / "README.md").read_text()
    assert "\npipeline_tag: translation\n" in card
    assert "40.1 on test2016" in card  # of the bundle's own card
    assert "AutoModelForSeq2SeqLM" in card
    words = ("export", checkpoint, tmp_path / "out", "--to", "transformers")
    assert run(*words) == run(*words, "--force") == 0
    assert "- Updates: 40\n" in (tmp_path / "out" / "README.md").read_text()
    (tmp_path / "out" / "notes.txt").touch()
    assert "it holds something else, or was changed" in error(capsys, *words, "--force")


WRONG = {
    "languages": ["de/../..", "en"],
    "task": {"a": 1},
    "vocab_size": 10**12,
    "others": {"sections": 3},
    "quantization_config": {"bits": 4},
    "attn_implementation": "flash_attention_2",
}


def test_mistakes_are_one_line(exported, towns_reader, tmp_path, capsys):  # noqa: F811
    damaged = tmp_path / "damaged"
    shutil.copytree(exported, damaged)

    def line(of: object, to: str = "fairseq", out: Path = tmp_path / "o") -> str:
        return error(capsys, "export", of, out, "--to", to, "--dtype", "float16")

    assert "no such file" in line(tmp_path / "none", "transformers")
    assert "it exists" in line(TRANSLATOR, "transformers", exported)
    assert "has no place for bidaf_reader" in line(towns_reader, "transformers")
    assert "config.json" in line(exported.parent)
    assert "no such" in line(tmp_path / "no")
    config = json.loads((damaged / "config.json").read_text())
    for name, value in WRONG.items():  # before a model is built
        (damaged / "config.json").write_text(json.dumps(config | {name: value}))
        assert f"CHECKPOINT is {damaged}: " in line(damaged)
    (damaged / "config.json").write_text(json.dumps(config))
    tensors = load_file(exported / "model.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name][1:]}, damaged / "model.safetensors")
    assert "its configuration wants" in line(damaged)
    del tensors[name]
    save_file(tensors, damaged / "model.safetensors")
    assert "its weights lack 1 tensors" in line(damaged)
    shutil.copy(exported / "model.safetensors", damaged)
    (tmp_path / "secret").write_text("secret")
    (damaged / "chat_template.jinja").symlink_to(tmp_path / "secret")
    assert "chat_template.jinja is a link that leads out of it" in line(damaged)
    (damaged / "chat_template.jinja").unlink()
    with (damaged / "dict.txt").open("a") as file:
        file.write("more 1\n")
    assert "[4064, 4064] embeddings, and [4065, 4064] symbols" in line(damaged)
    words = ("export", exported, tmp_path / "o", "--to", "fairseq", "--data", tmp_path)
    assert "; allowed: none with --to fairseq" in error(capsys, *words)
    assert not (tmp_path / "o").exists()
