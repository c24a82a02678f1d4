"""A language model writes: what, how it is drawn, and how far."""

import io
from pathlib import Path

import pytest
import torch

import fairseq_clusterformer
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.language_model import LanguageModel, draw
from tests.cli.in_process import TRANSFORMER, train
from tests.documents.commands import error, run, usage_error


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> LanguageModel:
    return fairseq_clusterformer.load(checkpoint, device="cpu")


def greedy_by_prefix(model: LanguageModel, tokens: torch.Tensor, more: int) -> torch.Tensor:
    """The likeliest token after each prefix, read anew in one pass."""
    for _ in range(more):
        with torch.no_grad():
            out = model.model.get_normalized_probs(model.model(tokens[None]), log_probs=True)
        log_probs = out[0, -1]
        of_bytes = model.coding.unit == "byte"
        log_probs[[i for i in range(4) if of_bytes or i != model.dictionary.eos()]] = -torch.inf
        tokens = torch.cat([tokens, log_probs.argmax().view(1)])
    return tokens


@pytest.mark.parametrize("name", ["checkpoint", "dense_checkpoint", "word_checkpoint"])
def test_the_likeliest_are_those_of_a_pass_over_each_prefix(name, request):
    model = fairseq_clusterformer.load(request.getfixturevalue(name), device="cpu")
    given = model._given("The with", "prompt", 1)
    wanted = greedy_by_prefix(model, given, 30)[len(given) :]
    text = model.generate("The with", 30, temperature=0)
    assert text == "The with" + model.coding.decode(wanted, int(given[-1]))


def test_numbers_of_another_type_by_name(checkpoint):
    for dtype in ("bfloat16", "torch.bfloat16", torch.bfloat16):
        model = fairseq_clusterformer.load(checkpoint, device="cpu", dtype=dtype)
        assert {each.dtype for each in model.model.parameters()} == {torch.bfloat16}
    for dtype in ("float99", "int64", torch.int64, "nn", 16):
        with pytest.raises(UserError, match=f"^dtype is {dtype}; allowed: float64, float32, bf"):
            fairseq_clusterformer.load(checkpoint, device="cpu", dtype=dtype)


def test_a_prompt_is_read_at_once(model, monkeypatch):
    """As its tokens one by one, which a decoder that does not say so gets."""
    calls = []
    decoder = type(model.model.decoder)
    forward = decoder.forward

    def counted(self, tokens, **options):
        calls.append(tokens.size(1))
        return forward(self, tokens, **options)

    monkeypatch.setattr(decoder, "forward", counted)
    prompt = "The cat and the dog with " * 4
    at_once = model.generate(prompt, 12, temperature=0)
    assert len(calls) == 12
    monkeypatch.setattr(model.model.decoder, "reads_prompts", False)
    assert model.generate(prompt, 12, temperature=0) == at_once
    assert len(calls) > 12 + 12 + 90


def test_seeds_and_streams(model):
    text = model.generate("The ", 50, seed=3)
    assert text.startswith("The ")
    assert text == model.generate("The ", 50, seed=3)
    assert text != model.generate("The ", 50, seed=4)
    parts = list(model.generate("The ", 50, seed=3, stream=True))
    assert parts[0] == "The "
    assert len(parts) >= 50
    assert "".join(parts) == text
    assert model.generate("", 5, seed=1)


def test_draws():
    log_probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, -1)
    generator = torch.Generator().manual_seed(1)

    def shares(temperature=1.0, top_k=None, top_p=1.0) -> list[float]:
        found = draw(log_probs, generator, temperature, top_k, top_p)
        return (found.bincount(minlength=4) / len(found)).tolist()

    assert shares() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)
    squares = torch.tensor([0.5, 0.3, 0.15, 0.05]).pow(2)
    assert shares(temperature=0.5) == pytest.approx((squares / squares.sum()).tolist(), abs=0.03)
    assert shares(top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(top_p=0.8) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(top_p=0.81)[2] > 0.1
    assert shares(top_p=0.01) == shares(temperature=0) == shares(top_k=1) == [1, 0, 0, 0]
    assert shares(temperature=1e-42) == shares(temperature=1e-30, top_k=2) == [1, 0, 0, 0]
    assert shares(top_p=1e-300) == [1, 0, 0, 0]


def test_beyond_the_positions(model, byte_data, tmp_path):
    """Sinusoidal positions go on; learned ones end."""
    assert len(model.generate("a" * 60, 40, temperature=0).encode()) >= 100
    train(byte_data, f"{TRANSFORMER} --decoder-learned-pos --max-update 1", tmp_path)
    learned = fairseq_clusterformer.load(tmp_path / "checkpoint_last.pt", device="cpu")
    with pytest.raises(UserError, match="allowed: up to 5 after this prompt"):
        learned.generate("a" * 60, 6)
    assert learned.generate("a" * 60, 5, temperature=0)


def test_command(checkpoint, lm_bundle, model, monkeypatch, capsys):
    wanted = model.generate("The é", 30, temperature=0.8, top_k=20, top_p=0.9, seed=2) + "\n"
    options = ["--max-tokens", 30, "--temperature", 0.8, "--top-k", 20, "--top-p", 0.9]
    words = ["generate", "--cpu", "--seed", 2, *options, "--checkpoint"]
    assert run(*words, checkpoint, "The é") == 0
    assert capsys.readouterr().out == wanted
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("The é\n".encode())))
    assert run(*words, lm_bundle) == 0
    assert capsys.readouterr().out == wanted


def test_mistakes(checkpoint, translation_model, capsys):
    model = ["generate", "--checkpoint", checkpoint, "--cpu"]
    words = ["generate", "--checkpoint", translation_model, "a"]
    assert "of the task translation" in error(capsys, *words)
    assert "--input is file" in usage_error(capsys, *model, "a", "--input", "file")
    assert f"seed is {2**64}; allowed: " in error(capsys, *model, "a", "--seed", 2**64)
    language = fairseq_clusterformer.load(checkpoint, device="cpu")
    with pytest.raises(UserError, match="temperature is inf; allowed: 0 or more"):
        language.generate("a", temperature=float("inf"))
