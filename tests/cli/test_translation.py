"""Translation by fairseq's commands: trained, resumed, warm-started, generated from."""

from pathlib import Path

import pytest
import torch

from tests.cli.expected import Results, assert_same, parse, targets
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    generate,
    interactive,
    load_model,
    load_state,
    train,
)

TASK = "--task translation --source-lang src --target-lang tgt --max-len-a 1 --max-len-b 5"


def translate(
    data: Path, checkpoint: Path | str, line: str, results: Path, *more: object
) -> Results:
    return parse(generate(data, checkpoint, f"{TASK} {line}", results, *more))


class TestTrain:
    def test_best_checkpoint_by_bleu(self, parallel_data, translator, tmp_path):
        """Large steps ruin the model after its first update, whose step is 0."""
        line = (
            f"{CLUSTERED_TRANSLATION} --finetune-from-model {translator} --max-update 2"
            " --lr-scheduler inverse_sqrt --warmup-init-lr 0 --warmup-updates 1 --lr 9"
            " --save-interval-updates 1 --eval-bleu --eval-tokenized-bleu"
            " --best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
        )
        train(parallel_data, line, tmp_path, "--eval-bleu-args", '{"beam": 2}')
        best, end = (load_state(tmp_path / f"checkpoint_{n}.pt") for n in ("best", "last"))
        numbers = [state["optimizer_history"][-1]["num_updates"] for state in (best, end)]
        assert numbers == [1, 2]
        bleu = best["extra_state"]["best"]
        assert bleu == end["extra_state"]["best"] > end["extra_state"]["val_loss"] + 5
        # what fairseq-generate scores
        line = "--gen-subset valid --beam 2 --scoring sacrebleu --sacrebleu-tokenizer none"
        lines = generate(
            *(parallel_data, tmp_path / "checkpoint_best.pt", f"--task translation {line}"),
            *(tmp_path, "--batch-size", 24),
        )
        assert f" = {bleu:.2f} " in lines[-1]


class TestGenerate:
    @pytest.mark.parametrize("options", ["--beam 5 --nbest 5", "--beam 3 --prefix-size 2"])
    def test_a_batch_is_its_sentences(self, options, parallel_data, translator, tmp_path):
        """Every hypothesis and every probability."""
        alone, *others = (
            translate(parallel_data, translator, f"{options} {size}", tmp_path / size[2:])
            for size in ("--batch-size 1", "--batch-size 64", "--max-tokens 40")
        )
        assert alone.keys() == set(range(24))
        for results in others:
            assert_same(results, alone)

    def test_it_has_learned_something_and_not_all(self, parallel_data, translator, tmp_path):
        """So that the other tests compare what is not sure."""
        lines = generate(parallel_data, translator, f"{TASK} --beam 1", tmp_path)
        wanted = targets(lines)
        right = [found[0][1].split() == wanted[number] for number, found in parse(lines).items()]
        assert 0 < sum(right) < 24, sum(right)

    @pytest.mark.parametrize("ensemble", [False, pytest.param(True, marks=pytest.mark.whole)])
    @torch.no_grad()
    def test_probabilities_are_the_parallel_models(
        self, ensemble, parallel_data, translator, tmp_path, request
    ):
        """Of every token of every hypothesis; of an ensemble, their mean."""
        paths = [translator]
        if ensemble:
            paths.append(request.getfixturevalue("dense_translator"))
        line = f"{TASK} --beam 3 --nbest 3 --batch-size 10"
        lines = generate(parallel_data, ":".join(map(str, paths)), line, tmp_path)
        sources = {
            int(label[2:]): text
            for label, text in (x.split("\t") for x in lines if x.startswith("S-"))
        }
        models = [load_model(path, parallel_data) for path in paths]
        words = models[0][1].source_dictionary
        for number, hypotheses in parse(lines).items():
            source = words.encode_line(sources[number], add_if_not_exist=False).long()[None]
            for _, text, positions in hypotheses:
                tokens = [words.eos(), *map(words.index, text.split()), words.eos()]
                given = torch.tensor([tokens[:-1]])
                chosen = torch.tensor(tokens[1:])[:, None]
                each = [
                    model.get_normalized_probs(
                        model(source, torch.tensor([source.size(1)]), given), log_probs=False
                    )
                    for model, _ in models
                ]
                expected = torch.stack(each).mean(0)[0].gather(-1, chosen).squeeze(-1).log2()
                torch.testing.assert_close(torch.tensor(positions), expected, rtol=1e-4, atol=2e-4)

    def test_interactive(self, parallel_text, parallel_data, translator, tmp_path, capsys):
        line = "--beam 3 --nbest 3 --batch-size 8"
        expected = translate(parallel_data, translator, line, tmp_path)
        capsys.readouterr()
        for buffer in (8, 24):
            interactive(
                *(parallel_data, translator, f"{TASK} {line}", parallel_text / "test.src"),
                *("--buffer-size", buffer),
            )
            assert_same(parse(capsys.readouterr().out.splitlines()), expected)
