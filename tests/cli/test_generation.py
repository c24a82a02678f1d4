"""fairseq-generate and fairseq-interactive, of language models and translators, step by step."""

from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.data.characters import byte_symbols
from tests.cli.expected import Results, assert_same, parse
from tests.cli.in_process import generate, interactive, load_model

PROMPTS = [b"The for stat", b"x", b"assert expr", b"class C:\n    def "]
WRITE = "--max-len-a 0 --max-len-b 24 --beam 3"
BLOCKS = f"{WRITE} --gen-subset test --tokens-per-sample 50 --prefix-size 8"
TASK = "--task translation --source-lang src --target-lang tgt --max-len-a 1 --max-len-b 5"


def searched(data: Path, checkpoint: Path | str, line: str, out: Path, *more: object) -> Results:
    return parse(generate(data, checkpoint, line, out, *more))


@pytest.mark.parametrize(
    ("data", "model", "line", "sentences"),
    [
        ("byte_data", "checkpoint", BLOCKS, 10),
        ("parallel_data", "translator", f"{TASK} --beam 5 --nbest 5", 24),
        ("parallel_data", "translator", f"{TASK} --beam 3 --prefix-size 2", 24),
    ],
)
def test_a_batch_is_its_sentences(data, model, line, sentences, request, tmp_path):
    """Every hypothesis and every probability."""
    of = [request.getfixturevalue(name) for name in (data, model)]
    alone, *others = (
        searched(*of, line, tmp_path / str(number), *size)
        for number, size in enumerate(
            (("--batch-size", 1), ("--batch-size", 64), ("--max-tokens", 130))
        )
    )
    assert alone.keys() == set(range(sentences))
    for results in others:
        assert_same(results, alone)


@torch.no_grad()
def test_probabilities_are_those_of_one_pass(byte_data, checkpoint, tmp_path):
    """Of every token that was chosen, with beams."""
    results = searched(byte_data, checkpoint, f"{BLOCKS} --batch-size 5", tmp_path)
    model, task = load_model(checkpoint, byte_data)
    eos = task.dictionary.eos()
    for (_, text, positions), *_ in results.values():
        tokens = torch.tensor([eos, *map(task.dictionary.index, text.split()), eos])
        logits, _ = model(tokens[None, :-1])
        assert_log2(positions, logits[0].softmax(-1), tokens[1:])


def assert_log2(positions: list[float], found: torch.Tensor, tokens: torch.Tensor) -> None:
    """The logarithms of what a pass [N, V] gives to its next tokens [N]."""
    expected = found.gather(-1, tokens[:, None]).squeeze(-1).log2()
    torch.testing.assert_close(torch.tensor(positions), expected, rtol=1e-4, atol=2e-4)


@torch.no_grad()
def test_a_translators_are_those_of_one_pass(
    parallel_data, translator, dense_translator, tmp_path
):
    """Of every hypothesis of an ensemble, their mean."""
    paths = [translator, dense_translator]
    line = f"{TASK} --beam 3 --nbest 3 --batch-size 10"
    lines = generate(parallel_data, ":".join(map(str, paths)), line, tmp_path)
    sources = {int(x.split("\t")[0][2:]): x.split("\t")[1] for x in lines if x[:2] == "S-"}
    models = [load_model(path, parallel_data) for path in paths]
    words = models[0][1].source_dictionary
    for number, hypotheses in parse(lines).items():
        source = words.encode_line(sources[number], add_if_not_exist=False).long()[None]
        length = torch.tensor([source.size(1)])
        for _, text, positions in hypotheses:
            tokens = torch.tensor([words.eos(), *map(words.index, text.split()), words.eos()])
            outs = [model(source, length, tokens[None, :-1]) for model, _ in models]
            assert_log2(positions, sum(x[0][0].softmax(-1) for x in outs) / len(outs), tokens[1:])


def test_prompts(byte_data, checkpoint, tmp_path, capsys):
    """One by one, they go on as in a batch, though ragged there."""
    path = tmp_path / "prompts.txt"
    symbols = [[byte_symbols()[byte] for byte in prompt] for prompt in PROMPTS]
    path.write_text("".join(" ".join(of_one) + "\n" for of_one in symbols))
    found = []
    for size in (1, 4):
        interactive(
            *(byte_data, checkpoint, WRITE, path),
            *("--buffer-size", size, "--batch-size", size),
        )
        found.append(parse(capsys.readouterr().out.splitlines()))
    alone, together = found
    for number, given in enumerate(symbols):
        [(_, text, _)] = alone[number]
        assert text.split()[: len(given)] == given
        assert len(text.split()) > len(given)
    assert_same(together, alone)
