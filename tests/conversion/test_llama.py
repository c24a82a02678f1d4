"""Folders of Llama, Mistral and Qwen become ours: the same logits, and the same texts."""

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import fairseq_clusterformer  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.conversion import dense  # noqa: E402
from fairseq_clusterformer.families import FAMILIES  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.conversion.dense import LLAMAS, TEXT  # noqa: E402
from tests.documents.commands import error, run  # noqa: E402

PROMPT = "The small cat é ran,\ntold on </s> and ☺ away from the mat. A dog sat on it."
BEGINS_BY_BOS = ("llama", "mistral")


# without a window and with one, begun by <s> or not
@pytest.fixture(scope="module", params=sampled(LLAMAS, ("llama", "qwen3")))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a family; its bundle stands behind "-bundle"."""
    folder = tmp_path_factory.mktemp("llamas") / request.param
    torch.manual_seed(3)
    LLAMAS[request.param](folder)
    assert run("export", folder, f"{folder}-bundle", "--to", "fairseq") == 0
    return folder


@pytest.fixture
def ours(folder: Path):
    return fairseq_clusterformer.load(f"{folder}-bundle", device="cpu")


def read(folder: Path, ours) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The prompt, int64 [1, N], with what begins a text, as they and we number it; and their
    number of each of our symbols, -1 for none."""
    symbols = AutoTokenizer.from_pretrained(folder)
    theirs = symbols(PROMPT, split_special_tokens=True)["input_ids"]
    vocabulary = symbols.get_vocab()
    begin = "<s>" if folder.name in BEGINS_BY_BOS else "<|end|>"
    names = ours.dictionary.symbols
    special = {f"<token-{i}>": i for i in range(330)}
    for token, number in vocabulary.items():  # white space is spelled
        if token.split() != [token]:
            special["".join(f"<U+{ord(letter):04X}>" for letter in token)] = number
    special |= {"</s>": vocabulary[begin], begin: -1}
    numbers = [special.get(name, vocabulary.get(name, -1)) for name in names]
    tokens = ours._given(PROMPT, "the prompt", 1)[None]
    assert int(tokens[0, 0] == 2) == int(folder.name in BEGINS_BY_BOS)
    return torch.tensor([theirs]), tokens, torch.tensor(numbers)


@torch.no_grad()
def test_the_same_logits(folder: Path, ours) -> None:
    """In bfloat16, they err as theirs do."""
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, tokens, numbers = read(folder, ours)
    assert numbers[tokens[0]].tolist() == ids[0].tolist()  # the text is the same
    assert ours.coding.decode(ours.coding.encode(PROMPT)) == PROMPT
    there = numbers >= 0
    assert there.sum() == Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    wanted, found = theirs(ids).logits[..., numbers[there]], ours.model(tokens)[0]
    torch.testing.assert_close(found[..., there], wanted, rtol=1e-4, atol=1e-4)
    assert found[..., ~there].max() < -9e3  # what it does not have is never likely
    half = theirs.bfloat16()(ids).logits[..., numbers[there]], ours.model.bfloat16()(tokens)[0]
    errors = [(one.float() - wanted).abs().mean() for one in (half[0], half[1][..., there])]
    assert errors[1] < 1.5 * errors[0] < 0.2 * wanted.abs().mean()


def test_a_window_that_llama_has_no_use_for(folder: Path) -> None:
    """Some folders were made from Mistral's, and still name one."""
    config = AutoConfig.from_pretrained(folder, sliding_window=8)
    sight = FAMILIES[config.model_type].options_of(config)["attention"]
    assert (sight == "full") == (folder.name == "llama")


@torch.no_grad()
def test_the_same_tokens_greedily(folder: Path, ours) -> None:
    """By what our decoder keeps, of which a window's layers have W tokens."""
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, tokens, numbers = read(folder, ours)
    how = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 329}
    hidden = sorted({*range(330)} - {*numbers.tolist()} | {int(numbers[1])} - {-1})
    wanted = theirs.generate(ids, suppress_tokens=hidden, **how)[0, ids.size(1) :]
    found = torch.tensor(list(ours._tokens(tokens[0], 40, None, 0.0, None, 1.0)))
    assert numbers[found].tolist() == wanted.tolist()
    written = ours.generate(PROMPT, 40, temperature=0)
    assert written == PROMPT + ours.coding.decode(found.tolist(), after=int(tokens[0, -1]))
    end = theirs.generation_config.eos_token_id = int(wanted[7])  # which stops both
    ours.model.text_ends = [int(found[7])]
    found = list(ours._tokens(tokens[0], 40, None, 0.0, None, 1.0))
    wanted = theirs.generate(ids, suppress_tokens=hidden, **how)[0, ids.size(1) :]
    assert numbers[found].tolist() == wanted.tolist()
    assert len(found) <= 8
    assert wanted[-1] == end


@torch.no_grad()
def test_back_to_transformers(folder: Path, ours, tmp_path: Path, capsys) -> None:
    """Its AutoTokenizer reads a text as we do, and a chat as the first folder did; and back."""
    first, out, again = f"{folder}-bundle", tmp_path / "out", tmp_path / "again"
    assert run("export", first, out, "--to", "transformers") == 0
    theirs, tokens = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(folder)
    _, ids, numbers = read(folder, ours)
    how = {"split_special_tokens": True}
    assert theirs(PROMPT, **how)["input_ids"] == ids[0].tolist()
    # what begins a text is special there, and hidden
    first = int(folder.name in BEGINS_BY_BOS)
    assert theirs.decode(ids[0, first:]) == tokens.decode(numbers[ids[0, first:]]) == PROMPT
    found = theirs(["A", "The cat"], padding=True, return_tensors="pt")
    assert found["input_ids"][0, 0] == 1
    messages = [{"role": "user", "content": "The cat?"}]
    said = [t.apply_chat_template(messages, return_dict=False) for t in (theirs, tokens)]
    assert numbers[said[0]].tolist() == said[1]
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    torch.testing.assert_close(model(ids).logits, ours.model(ids)[0])
    found = model.generate(ids, do_sample=False, max_new_tokens=40)[0, ids.size(1) :]
    assert found.tolist() == list(ours._tokens(ids[0], 40, None, 0.0, None, 1.0))
    ends = AutoConfig.from_pretrained(folder).eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    assert sorted(numbers[model.generation_config.eos_token_id].tolist()) == ends
    assert numbers[theirs.eos_token_id] == (2 if folder.name == "mistral" else 0)
    assert run("export", out, again, "--to", "fairseq") == 0
    back = fairseq_clusterformer.load(again, device="cpu")
    assert back._given(PROMPT, "the prompt", 1).tolist() == ids[0].tolist()
    assert back.coding.decode(ids[0, first:].tolist()) == PROMPT
    torch.testing.assert_close(back.model(ids)[0], ours.model(ids)[0])
    (out / "tokenizer.json").write_text("{}")
    assert "is no tokenizer.json" in error(
        capsys, "export", out, tmp_path / "x", "--to", "fairseq"
    )


def test_converted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An index whose clusters are all looked into changes nothing; a sliding window is not
    dense."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    dense = tmp_path / "dense"
    words = ["convert", dense, tmp_path / "out", "--clusters", 4, "--probes", 4, "--sinks", 2]
    words += ["--tokens", 1500, "--window-below", 0]
    shutil.copytree(folder, dense)
    line = error(capsys, *words)
    assert "--text is not given: a folder of transformers has no texts; allowed: --text" in line
    assert f"--tokenizer {dense}/tokenizer.json" in line
    (tmp_path / "dict.txt").write_text("a 1\n")
    line = error(capsys, *words, "--data", tmp_path)
    assert f"CHECKPOINT is {dense}: does not fit the data in {tmp_path} or " in line
    words += ["--updates", 1, "--near-window", 8, "--text", tmp_path / "text.txt"]
    if folder.name in ("mistral", "qwen3"):
        assert "of the decoder is window(8); allowed: a dense model" in error(capsys, *words)
        config = AutoConfig.from_pretrained(dense, sliding_window=None)
        if folder.name == "qwen3":  # a Mistral with these would be a Ministral
            config.layer_types = ["full_attention"] * 2
        config.save_pretrained(dense)
    slower, config = ["--max-positions", 256, "--rotary-scaling", "yarn"], None
    if folder.name == "qwen2":
        words, config = [*words, *slower], AutoConfig.from_pretrained(dense)
        rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}
        config.rope_parameters |= rope
    else:
        line = "--rotary-scaling is yarn; allowed: rotary positions that are not scaled, and more "
        assert line + "--max-positions" in error(capsys, *words, *slower)
    assert run(*words) == 0
    data = tmp_path / "out" / "data"
    says = f"with texts in the place of {data}, which has none\n(prepare them with --tokenizer "
    says += f"{data}/tokenizer.json --dict {data}/dict.txt):\n\nfairseq-train {data} "
    assert says in capsys.readouterr().out
    theirs = AutoModelForCausalLM.from_pretrained(dense, config=config).eval()
    loaded = load_checkpoint(tmp_path / "out/checkpoint.pt")
    (heads,) = loaded.model.decoder.layers[0].self_attn.kinds
    assert (heads.kind, heads.options.index, heads.options.probes) == ("taught", 128, 4)
    ids, tokens, numbers = read(folder, fairseq_clusterformer.load(f"{folder}-bundle"))
    with torch.no_grad():
        found, wanted = loaded.model.eval()(tokens)[0], theirs(ids).logits
    there = numbers >= 0
    wanted = wanted[..., numbers[there]]
    torch.testing.assert_close(found[..., there], wanted, rtol=1e-4, atol=1e-4)


def test_too_little_memory_is_one_line(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(dense, "free_memory", lambda: 40_000)
    line = error(capsys, "export", folder, tmp_path / "out", "--to", "fairseq")
    assert "it takes 0.0 GB of memory, and 0.0 GB are free; allowed: a smaller model" in line


def test_another_form_is_one_line(folder: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    config = json.loads((other / "config.json").read_text())
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    for options, problem in (
        ({"hidden_act": "gelu"}, "its hidden_act is gelu, not silu"),
        ({"rope_parameters": rope}, "its rope_type is dynamic, not default, linear, llama3, yarn"),
        ({"eos_token_id": []}, "its eos_token_id is [], not a number"),
    ):
        if folder.name in BEGINS_BY_BOS and "eos_token_id" in options:
            continue
        (other / "config.json").write_text(json.dumps(config | options))
        line = error(capsys, "export", other, tmp_path / "out", "--to", "fairseq")
        assert problem in line
        assert "; allowed: a folder of GPT-2" in line
    of_llama = (
        ({"num_hidden_layers": 3}, "its weights lack 9 tensors, such as model.layers.2."),
        ({"num_attention_heads": "4"}, "'num_attention_heads': TypeError: Field"),
        ({"head_dim": 0}, "0.0 cannot be raised to a negative power"),
        ({"rms_norm_eps": -1.0}, "--norm-eps is -1.0; allowed: above 0"),
    )
    for options, problem in of_llama if folder.name == "llama" else ():
        (other / "config.json").write_text(json.dumps(config | options))
        assert problem in error(capsys, "export", other, tmp_path / "out", "--to", "fairseq")
    (other / "config.json").write_text(json.dumps(config))
    words = "convert", other, tmp_path / "out", "--text", other / "config.json", "--attention=9"
    assert "--attention is 9: unknown kind '9'; allowed: full, " in error(capsys, *words)
