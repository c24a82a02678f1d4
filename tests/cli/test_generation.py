"""fairseq-generate and fairseq-interactive: text goes on from a prompt, step by step."""

import math
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.data.bytes import byte_symbols
from tests.cli.expected import assert_same, parse
from tests.cli.in_process import ALL, generate, interactive, load_model

PROMPT = 8
LENGTH = 24
BLOCKS = (
    f"--gen-subset test --tokens-per-sample 50 --prefix-size {PROMPT}"
    f" --max-len-a 0 --max-len-b {LENGTH} {ALL}"
)
BEAM = f"{BLOCKS} --beam 3"
PROMPTS = [b"The for stat", b"x", b"assert expr", b"class C:\n    def "]


def symbols_of(data: bytes) -> list[str]:
    return [byte_symbols()[byte] for byte in data]


class TestGenerate:
    @torch.no_grad()
    def test_probabilities_are_the_parallel_models(self, byte_data, checkpoint, tmp_path):
        """Of every token that was chosen, in a batch or alone, with beams."""
        results, alone = (
            parse(generate(byte_data, checkpoint, f"{BEAM} --batch-size {n}", tmp_path / str(n)))
            for n in (5, 1)
        )
        assert_same(results, alone)
        model, task = load_model(checkpoint, byte_data)
        eos = task.dictionary.eos()
        for _, text, positions in (results[number][0] for number in results):
            tokens = [eos, *map(task.dictionary.index, text.split()), eos]
            logits, _ = model(torch.tensor([tokens[:-1]]))
            log2 = logits[0].log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])
            expected = log2.squeeze(-1) / math.log(2)
            torch.testing.assert_close(torch.tensor(positions), expected, rtol=1e-4, atol=2e-4)


class TestInteractive:
    @pytest.fixture
    def prompts(self, tmp_path: Path) -> Path:
        path = tmp_path / "prompts.txt"
        path.write_text("".join(" ".join(symbols_of(prompt)) + "\n" for prompt in PROMPTS))
        return path

    OPTIONS = f"--max-len-a 0 --max-len-b {LENGTH} --beam 3"

    def test_prompts(self, byte_data, checkpoint, prompts, capsys):
        """One by one, they go on as in a batch, though ragged there."""
        interactive(byte_data, checkpoint, self.OPTIONS, prompts)
        alone = parse(capsys.readouterr().out.splitlines())
        for number, prompt in enumerate(PROMPTS):
            [(_, text, _)] = alone[number]
            assert text.split()[: len(prompt)] == symbols_of(prompt)
            assert len(text.split()) > len(prompt)

        capsys.readouterr()
        line = f"{self.OPTIONS} --buffer-size 4 --batch-size 4"
        interactive(byte_data, checkpoint, line, prompts)
        assert_same(parse(capsys.readouterr().out.splitlines()), alone)
