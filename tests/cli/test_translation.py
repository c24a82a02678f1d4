"""Translation by fairseq's commands: trained, resumed, warm-started, generated from."""

import argparse
import json
import logging
import math
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from fairseq_clusterformer.models.encoder import ClusterformerEncoder
from tests.cli.conftest import binarize
from tests.cli.expected import (
    STATISTICS,
    Results,
    assert_logged,
    assert_same,
    assert_trains,
    last_line,
    parse,
    targets,
)
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    DENSE_TRANSLATION,
    RESET,
    TRANSLATION,
    assert_equal_states,
    generate,
    interactive,
    load_model,
    load_state,
    train,
)
from tests.conftest import REPO_ROOT, RunCli

TASK = "--task translation --source-lang src --target-lang tgt --max-len-a 1 --max-len-b 5"


def last(folder: Path) -> Path:
    return folder / "checkpoint_last.pt"


def translate(
    data: Path, checkpoint: Path | str, line: str, results: Path, *more: object
) -> Results:
    return parse(generate(data, checkpoint, f"{TASK} {line}", results, *more))


class TestTrain:
    def test_command_line(self, parallel_data: Path, tmp_path: Path, run_cli: RunCli) -> None:
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

    def test_loss_falls(self, parallel_data: Path, tmp_path: Path) -> None:
        run = train(parallel_data, CLUSTERED_TRANSLATION, tmp_path, "--max-update", 12)
        assert_trains(run)
        assert run.updates[0]["cluster_effective"] > 1.5 * run.updates[0]["sample_size"]

    def test_clustering_losses_are_trained_and_not_logged_as_the_tasks(
        self, parallel_data: Path, tmp_path: Path
    ) -> None:
        runs = [
            train(
                *(parallel_data, f"{CLUSTERED_TRANSLATION} --dropout 0", tmp_path / str(weight)),
                *("--max-update", 1, "--lr", 0, "--clustering-loss-weight", weight),
            )
            for weight in (0, 100)
        ]
        (alone,), (both,) = (run.updates for run in runs)
        assert both["gnorm"] > 2 * alone["gnorm"]
        assert {**both, "gnorm": 0} == {**alone, "gnorm": 0}
        assert runs[0].valid == runs[1].valid

    def test_best_checkpoint_by_bleu(
        self, parallel_data: Path, translator: Path, tmp_path: Path
    ) -> None:
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

    def test_resuming_in_mid_epoch_equals_never_stopping(
        self, parallel_data: Path, tmp_path: Path
    ) -> None:
        whole = train(
            *(parallel_data, CLUSTERED_TRANSLATION, tmp_path / "whole"),
            *("--save-interval-updates", 3),
        )
        middle = tmp_path / "whole" / "checkpoint_1_3.pt"
        line = f"{CLUSTERED_TRANSLATION} --restore-file {middle}"
        resumed = train(parallel_data, line, tmp_path / "resumed")
        assert resumed.updates == whole.updates[3:]
        states = [load_state(last(tmp_path / run)) for run in ("whole", "resumed")]
        assert_equal_states(states[0]["model"], states[1]["model"])

    def test_activation_checkpointing_changes_no_number(
        self, parallel_data: Path, tmp_path: Path
    ) -> None:
        line = f"{CLUSTERED_TRANSLATION} --attention-dropout 0.1"
        plain = train(parallel_data, line, tmp_path / "plain")
        run = train(parallel_data, line, tmp_path / "checkpointed", "--checkpoint-activations")
        for side in (run.model.encoder, run.model.decoder):
            assert hasattr(side.layers[0], "precheckpoint_forward")
        for update, same in zip(run.updates + run.valid, plain.updates + plain.valid, strict=True):
            torch.testing.assert_close(update, same, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        "options",
        [
            "--encoder-normalize-before --decoder-normalize-before",
            "--encoder-layerdrop 0.3 --decoder-layerdrop 0.3 --encoder-layers 4",
            "--own-centroids --encoder-cluster-rule recent",
            "--encoder-attention lsh+routing,strided --decoder-attention strided,routing+lsh",
            "--encoder-attention window+neural,full --decoder-attention neural",
            "--decoder-attention neural --decoder-cluster-rule leaking-chunk",
            "--cluster-similarity dot --cluster-temperature 1 --cluster-normalizer running",
        ],
    )
    def test_option(self, options: str, parallel_data: Path, tmp_path: Path) -> None:
        run = train(
            parallel_data, f"{CLUSTERED_TRANSLATION} {options}", tmp_path, "--max-update", 14
        )
        # the best of a few: LayerDrop makes single updates worse
        assert min(run.mean_loss(i) for i in range(-5, 0)) < run.mean_loss(0) - 0.1
        assert all(math.isfinite(x) for update in run.updates for x in update.values())
        assert_logged(run)

    def test_separate_embeddings(self, parallel_data: Path, tmp_path: Path) -> None:
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


OPTIONS = (
    "--beam 5 --nbest 5",
    "--beam 1",
    "--beam 4 --nbest 4 --lenpen 2",
    "--beam 3 --nbest 3 --prefix-size 2",
    "--beam 2 --no-repeat-ngram-size 2",
)


class TestGenerate:
    @pytest.mark.parametrize("options", OPTIONS)
    def test_a_batch_is_its_sentences(
        self, options: str, parallel_data: Path, translator: Path, tmp_path: Path
    ) -> None:
        """Every hypothesis and every probability; and the options do what they say."""
        lines = {
            size: generate(
                parallel_data, translator, f"{TASK} {options} {size}", tmp_path / size[2:]
            )
            for size in ("--batch-size 1", "--batch-size 64", "--max-tokens 40")
        }
        results = {size: parse(printed) for size, printed in lines.items()}
        alone = results.pop("--batch-size 1")
        for others in results.values():
            assert_same(others, alone)
        assert alone.keys() == set(range(24))
        wanted = targets(lines["--batch-size 1"])
        for number, hypotheses in alone.items():
            # the prefix of a sentence of one word holds its end
            if "--nbest" in options and not ("prefix" in options and len(wanted[number]) < 2):
                assert len({(text, *positions) for _, text, positions in hypotheses}) == int(
                    options.split()[3]
                )
            for score, text, positions in hypotheses:
                words = text.split()
                power = 2 if "lenpen" in options else 1
                mean = sum(positions) / len(positions) ** power
                assert math.isclose(score, mean, abs_tol=1e-3)
                if "ngram" in options:
                    pairs = list(zip(words, words[1:], strict=False))
                    assert len(pairs) == len(set(pairs))
                if "prefix" in options:
                    assert words[:2] == wanted[number][:2]
        if "ngram" in options:  # which blocks something here
            free = generate(parallel_data, translator, f"{TASK} --beam 2", tmp_path / "free")
            assert parse(free) != alone
        if options == "--beam 1":
            # it has learned something, and not all
            right = [h[0][1].split() == wanted[number] for number, h in alone.items()]
            assert 0 < sum(right) < 24, sum(right)

    def test_order_of_sentences(
        self, parallel_text: Path, parallel_data: Path, translator: Path, tmp_path: Path
    ) -> None:
        for side in ("src", "tgt"):
            text = (parallel_text / f"test.{side}").read_text().splitlines()
            (tmp_path / f"test.{side}").write_text("\n".join(reversed(text)) + "\n")
        words = ("--testpref", tmp_path / "test", "--srcdict", parallel_data / "dict.src.txt")
        binarize(parallel_text, tmp_path / "data", *words, "--joined-dictionary")
        line = "--beam 3 --nbest 3 --batch-size 7"
        forward = translate(parallel_data, translator, line, tmp_path / "forward")
        back = translate(tmp_path / "data", translator, line, tmp_path / "back")
        assert_same({23 - number: hypotheses for number, hypotheses in back.items()}, forward)

    def test_side_of_the_padding(
        self,
        parallel_data: Path,
        translator: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
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

    @pytest.mark.parametrize("ensemble", ["", "dense", "earlier"])
    @torch.no_grad()
    def test_probabilities_are_the_parallel_models(
        self,
        ensemble: str,
        parallel_data: Path,
        translator: Path,
        dense_translator: Path,
        tmp_path: Path,
    ) -> None:
        """Of every token of every hypothesis; of an ensemble, their mean."""
        [earlier] = translator.parent.glob("checkpoint_*_75.pt")
        paths = [
            translator,
            *{"dense": [dense_translator], "earlier": [earlier]}.get(ensemble, []),
        ]
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

    def test_sampling(self, parallel_data: Path, translator: Path, tmp_path: Path) -> None:
        line = "--sampling --sampling-topk 8 --beam 3 --nbest 3 --batch-size 24"
        runs = [
            translate(parallel_data, translator, line, tmp_path / str(i), "--seed", seed)
            for i, seed in enumerate((3, 3, 4))
        ]
        assert runs[0] == runs[1] != runs[2]

    def test_interactive(
        self, parallel_text: Path, parallel_data: Path, translator: Path, tmp_path: Path, capsys
    ) -> None:
        line = "--beam 3 --nbest 3 --batch-size 8"
        expected = translate(parallel_data, translator, line, tmp_path)
        capsys.readouterr()
        for buffer in (8, 24):
            interactive(
                *(parallel_data, translator, f"{TASK} {line}", parallel_text / "test.src"),
                *("--buffer-size", buffer),
            )
            assert_same(parse(capsys.readouterr().out.splitlines()), expected)

    def test_pruned_layers(self, parallel_data: Path, translator: Path, tmp_path: Path) -> None:
        """Keeping the upper layer alone, which takes over the stack's first centroids."""
        keep = {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "1"}
        model, _ = load_model(translator, parallel_data, **keep)
        whole = load_state(translator)["model"]
        for side in ("encoder", "decoder"):
            layers = getattr(model, side).layers
            assert len(layers) == 1
            expected = {
                name.removeprefix(f"{side}.layers.1."): tensor
                for name, tensor in whole.items()
                if name.startswith(f"{side}.layers.1.")
            }
            assert_equal_states(layers[0].state_dict(), expected)
        line = f"--batch-size 24 --model-overrides {str(keep).replace(' ', '')}"
        results = translate(parallel_data, translator, line, tmp_path)
        assert results.keys() == set(range(24))

    def test_generation_with_what_leaks(self, parallel_data: Path, tmp_path: Path) -> None:
        line = "--decoder-attention neural --decoder-cluster-rule leaking-chunk --max-update 1"
        train(parallel_data, f"{CLUSTERED_TRANSLATION} {line}", tmp_path)
        with pytest.raises(ValueError, match="cannot be generated") as caught:
            translate(parallel_data, last(tmp_path), "--batch-size 4", tmp_path / "results")
        assert "the cluster rule is 'leaking-chunk'" in last_line(caught.value)


class TestWarmStart:
    """From fairseq's own translation model."""

    @pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
    def test_only_what_routes_is_new(
        self, option: str, parallel_data: Path, dense_translator: Path, tmp_path: Path, caplog
    ) -> None:
        line = f"{CLUSTERED_TRANSLATION} --lr 0 --max-update 1 {option} {dense_translator}"
        if option == "--restore-file":
            line += f" {RESET}"
        with caplog.at_level(logging.INFO):
            train(parallel_data, line, tmp_path)
        for side in ("encoder", "decoder"):
            for i in range(2):
                layer = f"{side}.layers.{i}.self_attn"
                assert f"{layer}: the checkpoint has no clusters; they start anew" in caplog.text
        dense = load_state(dense_translator)["model"]
        warm = load_state(last(tmp_path))["model"]
        added = {name.partition(".clustering.")[0] for name in warm.keys() - dense.keys()}
        assert added == {
            "encoder.centroids",
            *(f"encoder.layers.{i}.self_attn.routers.0" for i in range(2)),
            *(f"decoder.layers.{i}.self_attn.routers.1" for i in range(2)),
        }
        assert_equal_states(dense, {name: warm[name] for name in dense})
        assert warm["encoder.centroids"].std() > 0.05

    def test_full_attention_is_the_dense_model(
        self, parallel_data: Path, dense_translator: Path, tmp_path: Path
    ) -> None:
        """Losses and gradients, and what it generates."""
        line = f"--dropout 0 --restore-file {dense_translator} {RESET} --max-update 2"
        kinds = "--encoder-attention full --decoder-attention full"
        dense = train(parallel_data, f"{DENSE_TRANSLATION} {line}", tmp_path / "dense")
        full = train(parallel_data, f"{CLUSTERED_TRANSLATION} {kinds} {line}", tmp_path / "full")
        for name in ("loss", "gnorm"):
            for update, same in zip(dense.updates, full.updates, strict=True):
                assert math.isclose(update[name], same[name], rel_tol=1e-4)
        for batch, same in zip(dense.valid, full.valid, strict=True):
            assert math.isclose(batch["loss"], same["loss"], rel_tol=1e-4)
        line = f"{CLUSTERED_TRANSLATION} {kinds} {line} --lr 0"
        train(parallel_data, line, tmp_path / "as it was")
        results = [
            translate(
                *(parallel_data, path, "--beam 3 --nbest 3 --batch-size 24"),
                tmp_path / f"results {i}",
            )
            for i, path in enumerate((dense_translator, last(tmp_path / "as it was")))
        ]
        assert_same(*results)


BAD_OPTIONS = {
    "--encoder-attention neurall": "--encoder-attention is neurall: unknown kind 'neurall'; ",
    "--decoder-attention full,,full": "--decoder-attention is full,,full: '' is not a layer; ",
    "--encoder-attention window+neural+full": "4 heads do not divide among the 3 kinds",
    "--encoder-attention-heads 5": "--encoder-attention-heads is 5; allowed: a number that",
    "--decoder-attention-heads 5": "--decoder-attention-heads is 5; allowed: a number that",
    "--encoder-cluster-rule leaking-chunk": (
        "--encoder-cluster-rule is leaking-chunk; allowed: chunk, recent"
    ),
    "--decoder-cluster-rule chunk": (
        "--decoder-cluster-rule is chunk; allowed: recent, leaking-chunk"
    ),
    "--attention-window 0": "--attention-window is 0; allowed: 1 or more",
    "--encoder-attention neural(gap=2)": "--cluster-gap is 2; allowed: 0 with the rule chunk",
    "--encoder-kv-heads 3": "--encoder-kv-heads is 3; allowed: a number that divides",
    "--num-clusters 0": "--num-clusters is 0; allowed: 1 or more",
    "--cluster-similarity l2": "--cluster-similarity is l2; allowed: dot, scaled-dot, cosine",
    "--cluster-normalizer none": "--cluster-normalizer is none; allowed: average, running",
    "--cluster-temperature 0": "--cluster-temperature is 0.0; allowed: above 0",
    "--cross-self-attention": "--cross-self-attention is True; allowed: none",
    "--clustering-loss-weight -1": "--clustering-loss-weight is -1.0; allowed: 0 or more",
}


class TestBadOptions:
    @pytest.mark.parametrize("options", BAD_OPTIONS)
    def test_ends_before_training(
        self,
        options: str,
        parallel_data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def train_step(*_):
            pytest.fail("training began")

        monkeypatch.setattr("fairseq.trainer.Trainer.train_step", train_step)
        with pytest.raises(ValueError, match="allowed") as caught:
            train(parallel_data, f"{CLUSTERED_TRANSLATION} {options}", tmp_path)
        line = last_line(caught.value)
        assert line.startswith("ValueError: --")
        assert BAD_OPTIONS[options] in line

    def test_dense_criterion_is_fine(self, parallel_data: Path, tmp_path: Path) -> None:
        """Then nothing teaches the clusters."""
        line = CLUSTERED_TRANSLATION.replace("clusterformer_label", "label")
        run = train(parallel_data, line, tmp_path, "--max-update", 2)
        assert "clustering_loss" not in run.updates[0]

    def test_dense_model_with_the_clustering_criterion(
        self, parallel_data: Path, tmp_path: Path
    ) -> None:
        line = CLUSTERED_TRANSLATION.replace("--arch clusterformer", "--arch transformer")
        attention = "--encoder-attention neural --decoder-attention window+neural"
        for option in (attention, "--attention-window 3", "--num-clusters 3"):
            line = line.replace(option, "")
        with pytest.raises(ValueError, match="--criterion is ClusterformerLabelSmoothed"):
            train(parallel_data, line, tmp_path)


# In order and without dropout, as in test_distributed.py. Four neighbours have the same length.
SPLIT = (
    CLUSTERED_TRANSLATION.replace("--cpu --distributed-world-size 1", "--cpu").replace(
        "--max-tokens 400", ""
    )
    + " --dropout 0 --curriculum 100 --adam-eps 1e-3 --lr 0.005"
    + " --clustering-loss-weight 10 --centroid-sorting-loss-weight 10"
)
CLOSE = {"rtol": 1e-4, "atol": 5e-6}


@pytest.fixture(scope="session")
def double_batch(
    parallel_data: Path, translator: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One process, four sentences at once."""
    folder = tmp_path_factory.mktemp("double")
    line = f"{SPLIT} {RESET} --distributed-world-size 1 --batch-size 4"
    train(parallel_data, line, folder, "--restore-file", translator)
    return last(folder)


class TestDistributed:
    def compare(self, double_batch: Path, saved: Path, started: Path) -> None:
        state, expected = load_state(saved)["model"], load_state(double_batch)["model"]
        assert_equal_states(state, expected, **CLOSE)
        for name, before in load_state(started)["model"].items():
            if name.endswith((".centroids", ".w_c.weight", ".log_normalizer", ".fc1.weight")):
                assert (state[name] - before).abs().max() > 100 * CLOSE["atol"], name

    def test_update_frequency(
        self, parallel_data: Path, translator: Path, double_batch: Path, tmp_path: Path
    ) -> None:
        line = f"{SPLIT} {RESET} --distributed-world-size 1 --batch-size 2 --update-freq 2"
        train(parallel_data, line, tmp_path, "--restore-file", translator)
        self.compare(double_batch, last(tmp_path), translator)

    @pytest.mark.slow
    def test_two_processes(
        self,
        parallel_data: Path,
        translator: Path,
        double_batch: Path,
        tmp_path: Path,
        run_cli: RunCli,
    ) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"tcp://localhost:{free.getsockname()[1]}"
        line = (
            f"{SPLIT} {RESET} --batch-size 2 --distributed-world-size 2 --distributed-backend gloo"
            f" --distributed-init-method {address} --distributed-no-spawn"
            " --ddp-backend legacy_ddp"
        )

        def process(rank: int) -> subprocess.CompletedProcess[str]:
            return run_cli(
                *("fairseq-train", parallel_data, *line.split(), "--save-dir", tmp_path),
                *("--restore-file", translator, "--distributed-rank", rank, "--device-id", rank),
            )

        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(process, (0, 1)))
        assert "done training" in runs[0].stdout
        self.compare(double_batch, last(tmp_path), translator)


CONFIG = REPO_ROOT / "examples" / "translation" / "config"


@pytest.mark.parametrize("arch", ["clusterformer", "clusterformer_tiny"])
def test_checkpoint_from_before_the_dataclass(
    arch: str, parallel_data: Path, tmp_path: Path
) -> None:
    """Its options are a flat namespace; --attention and its like may be missing."""
    train(parallel_data, f"{CLUSTERED_TRANSLATION} --arch {arch} --max-update 1", tmp_path)
    expected = translate(parallel_data, last(tmp_path), "", tmp_path / "new")
    state = torch.load(last(tmp_path), weights_only=True)
    options = dict(state["cfg"]["model"])
    del options["cluster_exploration"]
    state["cfg"]["model"] = argparse.Namespace(**{**options, "arch": arch, "_name": arch})
    torch.save(state, last(tmp_path))
    assert_same(translate(parallel_data, last(tmp_path), "", tmp_path / "old"), expected)
    train(parallel_data, f"{CLUSTERED_TRANSLATION} --arch {arch} --max-update 2", tmp_path)
    assert load_state(last(tmp_path))["optimizer_history"][-1]["num_updates"] == 2


class TestHydra:
    def test_recipe_is_the_grids(self) -> None:
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

    def test_runs(self, parallel_data: Path, tmp_path: Path, run_cli: RunCli) -> None:
        """As its first lines say."""
        run = self.hydra(run_cli, parallel_data, tmp_path, "model.encoder_layers=3")
        shown = [json.loads(x[x.index("{") :]) for x in run.stdout.splitlines() if "_inner]" in x]
        losses = [float(record["loss"]) for record in shown]
        assert len(losses) == 6
        assert losses[-1] < losses[0] - 0.1
        assert all(float(record["cluster_effective"]) > 1 for record in shown)
        model = load_state(last(tmp_path))["model"]
        weights = [key for key in model if key.endswith(".clustering.w_c.weight")]
        assert len(weights) == 3 + 1  # the encoder's, and the decoder's last layer
        assert {model[key].shape for key in weights} == {(128, 128)}
        results = translate(parallel_data, last(tmp_path), "--batch-size 24", tmp_path / "out")
        assert results.keys() == set(range(24))

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("+model.num_cluster=7", "Key 'num_cluster' (is )?not in 'ClusterformerConfig'"),
            (
                "model._name=clusterformer_tiny",
                "model._name is clusterformer_tiny: .*; allowed: clusterformer, with each size",
            ),
        ],
    )
    def test_mistakes(
        self, override: str, message: str, parallel_data: Path, tmp_path: Path, run_cli: RunCli
    ) -> None:
        """They would go unseen: an option that is none, and sizes that are not applied."""
        run = self.hydra(run_cli, parallel_data, tmp_path, override, check=False)
        assert run.returncode != 0
        assert re.search(message, run.stdout), run.stdout[-2000:]

    @staticmethod
    def hydra(run_cli: RunCli, data: Path, out: Path, override: str, check: bool = True):
        return run_cli(
            *("fairseq-hydra-train", "--config-dir", "examples/translation/config"),
            *("--config-name", "multi30k", f"task.data={data}", "common.log_interval=1"),
            *(f"checkpoint.save_dir={out}", "task.source_lang=src", "task.target_lang=tgt"),
            *("optimization.max_update=6", "dataset.max_tokens=400", "common.log_format=json"),
            *("lr_scheduler.warmup_updates=0", override),
            user_dir=None,
            cwd=REPO_ROOT,
            check=check,
        )
