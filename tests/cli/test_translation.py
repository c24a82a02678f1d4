"""Translation by fairseq's commands: trained, resumed, warm-started, generated from."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from fairseq_clusterformer.models.encoder import ClusterformerEncoder
from tests.cli.expected import STATISTICS, Results, assert_same, assert_trains, parse, targets
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    TRANSLATION,
    generate,
    interactive,
    load_model,
    load_state,
    train,
)
from tests.cli.tasks import last
from tests.conftest import REPO_ROOT

TASK = "--task translation --source-lang src --target-lang tgt --max-len-a 1 --max-len-b 5"


def translate(
    data: Path, checkpoint: Path | str, line: str, results: Path, *more: object
) -> Results:
    return parse(generate(data, checkpoint, f"{TASK} {line}", results, *more))


class TestTrain:
    def test_command_line(self, parallel_data, tmp_path, run_cli):
        """A named architecture; and its checkpoint in a process that knows nothing else."""
        line = TRANSLATION[: TRANSLATION.index("--encoder-layers")]
        run = run_cli(
            *("fairseq-train", parallel_data, *line.split(), "--arch", "clusterformer_tiny"),
            *("--criterion", "clusterformer_label_smoothed_cross_entropy", "--max-update", 2),
            *("--optimizer", "adam", "--lr", 0.001, "--save-dir", tmp_path, "--cpu"),
            *("--log-format", "json", "--log-interval", 1),
        )
        assert "done training" in run.stdout
        for name in STATISTICS | {"loss", "nll_loss", "gnorm"}:
            assert run.stdout.count(f'"train_{name}": ') == 1, run.stdout
            assert run.stdout.count(f'"{name}": ') == 2
        w_c = load_state(last(tmp_path))["model"][
            "encoder.layers.2.self_attn.routers.1.clustering.w_c.weight"
        ]
        assert w_c.shape == (128, 128)
        words = ["--task", "translation", "--path", last(tmp_path), "--cpu", "--batch-size", 8]
        run = run_cli("fairseq-generate", parallel_data, *words)
        assert parse(run.stdout.splitlines()).keys() == set(range(24))

    def test_loss_falls(self, parallel_data, tmp_path):
        run = train(parallel_data, CLUSTERED_TRANSLATION, tmp_path, "--max-update", 12)
        assert_trains(run)
        assert run.updates[0]["cluster_effective"] > 1.5 * run.updates[0]["sample_size"]

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

    def test_separate_embeddings(self, parallel_data, tmp_path):
        """Without --share-all-embeddings, which all the others have."""
        shared = train(parallel_data, CLUSTERED_TRANSLATION, tmp_path / "shared")
        line = CLUSTERED_TRANSLATION.replace("--share-all-embeddings", "")
        run = train(parallel_data, line, tmp_path / "separate")
        for model, same in ((shared.model, True), (run.model, False)):
            tables = {
                model.encoder.embed_tokens.weight,
                model.decoder.embed_tokens.weight,
                model.decoder.output_projection.weight,
            }
            assert len(tables) == (1 if same else 3)
        assert_trains(run)
        translate(parallel_data, last(tmp_path / "separate"), "--batch-size 24", tmp_path)


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

    def test_side_of_the_padding(self, parallel_data, translator, tmp_path, monkeypatch):
        """By fairseq's default a source is padded on the left; the flag turns that off."""
        seen: list[Tensor] = []
        forward = ClusterformerEncoder.forward_scriptable

        def spy(self, src_tokens, *args, **kwargs):
            seen.append(src_tokens)
            return forward(self, src_tokens, *args, **kwargs)

        monkeypatch.setattr(ClusterformerEncoder, "forward_scriptable", spy)
        line = "--beam 3 --nbest 3 --batch-size 24"
        left = translate(parallel_data, translator, line, tmp_path / "left")
        right = translate(
            parallel_data, translator, f"{line} --left-pad-source", tmp_path / "right"
        )
        padding = [(tokens[:, 0] == 1).any().item() for tokens in seen]
        assert padding == [True, False]
        assert_same(right, left)

    @pytest.mark.parametrize("ensemble", [False, True])
    @torch.no_grad()
    def test_probabilities_are_the_parallel_models(
        self, ensemble, parallel_data, translator, dense_translator, tmp_path
    ):
        """Of every token of every hypothesis; of an ensemble, their mean."""
        paths = [translator, dense_translator] if ensemble else [translator]
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


def test_a_dense_criterion_is_fine(parallel_data, tmp_path):
    """Then nothing teaches the clusters."""
    line = CLUSTERED_TRANSLATION.replace("clusterformer_label", "label")
    run = train(parallel_data, line, tmp_path, "--max-update", 2)
    assert "clustering_loss" not in run.updates[0]


CONFIG = REPO_ROOT / "examples" / "translation" / "config"


class TestHydra:
    def test_recipe_is_the_grids(self):
        """Of the runs whose results the repository shows."""
        grid = yaml.safe_load((CONFIG.parent / "grid_multi30k.yaml").read_text())
        groups = yaml.safe_load((CONFIG / "multi30k.yaml").read_text())
        groups.pop("hydra")
        given = {key: value for group in groups.values() for key, value in group.items()}
        names = {name: groups[name]["_name"] for name in ("optimizer", "lr_scheduler")}
        names |= {"arch": "clusterformer_tiny"}
        names |= {group: groups[group]["_name"] for group in ("task", "criterion")}
        for option, value in (grid["shared"] | grid["rows"]["clustered en-de"]).items():
            key = option.replace("-", "_")
            if key == "keep_interval_updates":  # the recipe keeps more
                continue
            there = names.get(key, given.get(key))
            there = there[0] if isinstance(there, list) else there
            if key == "eval_bleu_remove_bpe":  # what the flag alone stands for
                value = "@@ "
            assert str(there) == str(value), option

    def test_a_size_that_would_not_be_applied(self, parallel_data, tmp_path, run_cli):
        words = ["--config-dir", CONFIG, "--config-name", "multi30k", f"task.data={parallel_data}"]
        words += [f"checkpoint.save_dir={tmp_path}", "model._name=clusterformer_tiny"]
        words += ["task.source_lang=src", "task.target_lang=tgt"]
        run = run_cli("fairseq-hydra-train", *words, user_dir=None, cwd=REPO_ROOT, check=False)
        assert run.returncode != 0
        message = "model._name is clusterformer_tiny: .*; allowed: clusterformer, with each size"
        assert re.search(message, run.stdout), run.stdout[-2000:]
