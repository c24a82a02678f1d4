"""Trainer, LoRA and pipelines: each does a few updates or a few tokens with a small model."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from fairseq_clusterformer.answers import TYPES  # noqa: E402
from tests.hf.small import config, language_model, tokens, translator  # noqa: E402


def fine_tuned(
    model, rows: list[dict], folder: Path, logged: str = "loss", **options: object
) -> list[float]:
    """What transformers' Trainer logs of a few updates."""
    pytest.importorskip("accelerate")
    arguments = TrainingArguments(
        output_dir=str(folder),
        **{"per_device_train_batch_size": 4, "max_steps": 12, **options},
        learning_rate=0.01,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return [log[logged] for log in trainer.state.log_history if logged in log]


def rows_of(model, **more: torch.Tensor) -> list[dict]:
    """Eight times one text, which is learned by heart."""
    text = tokens(1, 12)[0]
    return [{"input_ids": text, "attention_mask": torch.ones(12), "labels": text, **more}] * 8


def test_a_language_model_is_fine_tuned(tmp_path):
    model = language_model().train()
    before = model.model.decoder.layers[0].self_attn.routers[1].state_dict()
    before = {name: tensor.clone() for name, tensor in before.items()}
    losses = fine_tuned(model, rows_of(model), tmp_path, gradient_checkpointing=True)
    assert losses[-1] < losses[0] / 2
    router = model.model.decoder.layers[0].self_attn.routers[1]
    changed = [n for n, t in router.state_dict().items() if not torch.equal(t, before[n])]
    assert any("centroids" in name for name in changed)  # learned by their own loss
    assert any("normalizer" in name for name in changed)  # remembered from batch to batch


@pytest.mark.parametrize("accumulated", [1, 3])
def test_clusters_follow_once_an_update(accumulated, tmp_path):
    """However many batches an update accumulates: they are committed to between its steps."""
    model = language_model(attention="gated").train()
    router = model.model.decoder.layers[0].self_attn.routers[0]
    calls, commit = [], router.commit
    router.commit = lambda: (calls.append(model.model.decoder.num_updates), commit())
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append(1))
    options = {"gradient_accumulation_steps": accumulated, "max_steps": 4}
    fine_tuned(model, rows_of(model) * accumulated, tmp_path, **options)
    assert len(seen) == 4 * accumulated
    assert len(calls) == 4
    assert model.model.decoder.num_updates == 4
    assert router.normalizer.updates.item() == 3  # the last batches' is still to be applied


@pytest.mark.parametrize("kind", ["language", "classes"])
def test_an_update_of_several_batches_is_one_of_all_rows(kind, tmp_path):
    """The same gradient, that of the clusters' losses included."""
    more = {"labels": torch.tensor(1)} if kind == "classes" else {}
    found = []
    for size, accumulated in ((8, 1), (2, 4)):
        torch.manual_seed(1)
        model = language_model(attention="neural", dropout=0.0)
        if kind == "classes":
            no_dropout = {"dropout": 0.0, "classifier_dropout": 0.0}
            options = config("clusterformer_classifier_tiny", **no_dropout)
            model = AutoModelForSequenceClassification.from_config(options)
        model.config.criterion = {"clustering_loss_weight": 1.0}
        options = {"per_device_train_batch_size": size, "max_steps": 1}
        options["gradient_accumulation_steps"] = accumulated
        found += fine_tuned(model, rows_of(model, **more), tmp_path, "grad_norm", **options)
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_only_the_models_own_optimizer_counts():
    model, other = language_model().train(), torch.nn.Linear(2, 2)
    for steps, parameters in enumerate((other.parameters(), model.parameters()), 1):
        model(tokens(1, 5), labels=tokens(1, 5)).loss.backward()
        torch.optim.SGD(parameters, 0.1).step()
        assert model.model.decoder.num_updates == 1, steps
    model(tokens(1, 5), labels=tokens(1, 5))
    assert model.model.decoder.num_updates == 2


def test_a_reader_is_fine_tuned(tmp_path):
    """On one question with an answer and one without: both are learned by heart."""
    model = AutoModelForQuestionAnswering.from_config(
        config("clusterformer_reader_tiny", dropout=0.0)
    )
    bos, eos = model.config.bos_token_id, model.config.eos_token_id
    rows = []
    for start, end in ((30, 31), (0, 0)):
        ids = torch.cat([tokens(1, 7)[0], tokens(1, 41)[0]])
        ids[[0, 6, 7]] = torch.tensor([bos, eos, bos])
        types = (torch.arange(48) >= 7).long()
        rows.append({"input_ids": ids, "token_type_ids": types})
        rows[-1] |= {"start_positions": start, "end_positions": end}
    losses = fine_tuned(model, rows * 4, tmp_path, max_steps=30)
    assert losses[-1] < losses[0] / 3
    answered, none = ({name: row[name][None] for name in list(row)[:2]} for row in rows)
    assert model.eval().spans(**answered).tolist() == [[30, 32]]
    assert model(**none).type_logits.argmax() == TYPES.index("none")
    with pytest.raises(ValueError, match="output_hidden_states is True: .*; allowed: False"):
        model(**none, output_hidden_states=True)
    with pytest.raises(ValueError, match="inputs_embeds is given"):
        model(**none, inputs_embeds=torch.ones(1))


def test_clustering_losses_teach_and_are_not_logged():
    given = {"input_ids": tokens(2, 9), "labels": tokens(2, 9)}
    options = config("clusterformer_masked_lm_tiny", dropout=0.0)
    model = AutoModelForMaskedLM.from_config(options).train()
    torch.manual_seed(1)
    with_clusters = model(**given).loss
    with_clusters.backward()
    assert model.model.encoder.centroids.grad.any()
    model.zero_grad()
    names = ("clustering_loss_weight", "centroid_sorting_loss_weight", "routing_loss_weight")
    model.config.criterion = dict.fromkeys(names, 0.0)
    loss = model(**given).loss
    loss.backward()
    assert not model.model.encoder.centroids.grad.any()
    assert loss.item() == with_clusters.item()


@pytest.mark.parametrize("target", [["q_proj", "v_proj"], "all-linear"])
def test_lora_finds_its_modules(target, tmp_path):
    peft = pytest.importorskip("peft")
    model = language_model()
    ids = tokens(2, 9)
    before = model(ids).logits
    wanted = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=target, r=2)
    adapted = peft.get_peft_model(model, wanted).train()
    assert any("lora_A" in name for name, p in adapted.named_parameters() if p.requires_grad)
    torch.testing.assert_close(adapted.eval()(ids).logits, before)  # B is 0 at first
    losses = fine_tuned(adapted.train(), rows_of(model), tmp_path / "run")
    assert losses[-1] < losses[0]
    adapted.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    merged = adapted.eval().merge_and_unload()
    assert merged.generate(ids, max_new_tokens=3).shape == (2, 12)


def test_a_translator_learns_from_labels():
    model, source, target = translator(), tokens(2, 6), tokens(2, 5)
    target[1, 3:] = -100
    read = model.prepare_decoder_input_ids_from_labels(target)
    assert read[1].tolist() == [2, *target[1, :3].tolist(), 1]
    out = model(input_ids=source, labels=target)
    logits = model(input_ids=source, decoder_input_ids=read).logits
    torch.testing.assert_close(out.loss, cross_entropy(logits.flatten(0, 1), target.flatten()))
    assert model(input_ids=source, labels=target, num_items_in_batch=16).loss == out.loss / 2
