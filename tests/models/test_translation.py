"""The translation model as fairseq builds it: promises of encoder, decoder and criterion."""

from argparse import Namespace

import pytest
import torch
from fairseq.models.transformer import TransformerModel

from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerLabelSmoothedCrossEntropy,
    ClusterformerLabelSmoothedCrossEntropyConfig,
)
from fairseq_clusterformer.models.clusterformer import ClusterformerModel
from tests.models.small import gradients, make_task, sentences


def options(**changes) -> Namespace:
    values = {
        **{"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64},
        **{"encoder_attention_heads": 4, "decoder_layers": 2, "decoder_attention_heads": 4},
        **{"share_all_embeddings": True, "decoder_attention": "window+neural"},
        **{"attention_window": 5, "num_clusters": 3, "dropout": 0.0},
        **{"max_source_positions": 128, "max_target_positions": 128},
    }
    return Namespace(**{**values, **changes})


def make_model(task=None, **changes) -> ClusterformerModel:
    return ClusterformerModel.build_model(options(**changes), task or make_task())


def make_sample(task, sources=(9, 4, 17, 12), targets=(11, 6, 15, 8)) -> dict:
    target = sentences(task, list(targets), "right")
    previous = target.roll(1, dims=1)
    previous[:, 0] = task.target_dictionary.eos()
    previous[target == task.target_dictionary.pad()] = task.target_dictionary.pad()
    return {
        "net_input": {
            "src_tokens": sentences(task, list(sources), "left"),
            "src_lengths": torch.tensor(sources),
            "prev_output_tokens": previous,
        },
        "target": target,
        "ntokens": sum(targets),
    }


def make_criterion(task, **weights) -> ClusterformerLabelSmoothedCrossEntropy:
    config = ClusterformerLabelSmoothedCrossEntropyConfig(
        sentence_avg=False, label_smoothing=0.1, **weights
    )
    return ClusterformerLabelSmoothedCrossEntropy.build_criterion(config, task)


@pytest.mark.parametrize("before", [False, True])
@torch.no_grad()
def test_full_attention_is_fairseqs_transformer(before):
    task = make_task()
    norm = {"encoder_normalize_before": before, "decoder_normalize_before": before}
    dense = TransformerModel.build_model(options(**norm), task).eval()
    model = make_model(task, encoder_attention="full", decoder_attention="full", **norm).eval()
    model.load_state_dict(dense.state_dict())
    inputs = make_sample(task)["net_input"]
    real = inputs["prev_output_tokens"] != task.target_dictionary.pad()
    expected, found = dense(**inputs)[0][real], model(**inputs)[0][real]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_a_dense_checkpoint_fits_and_clusters_start_anew(own):
    task = make_task()
    dense = TransformerModel.build_model(options(), task)
    model = make_model(task, encoder_attention="window+neural", own_centroids=own)
    model.load_state_dict(dense.state_dict())
    state = model.state_dict()
    for name, tensor in dense.state_dict().items():
        assert torch.equal(state[name], tensor), name
    clustered = make_model(task, encoder_attention="window+neural", own_centroids=own)
    clustered.load_state_dict(model.state_dict())
    incomplete = {n: t for n, t in model.state_dict().items() if not n.endswith(".w_c.weight")}
    with pytest.raises(ValueError, match="Missing key"):
        clustered.load_state_dict(incomplete)


def test_pruned_layers_keep_their_attention():
    task, size = make_task(), {"encoder_layers": 4, "decoder_layers": 3}
    spec = {"encoder_attention": "window,neural,full", "decoder_attention": "neural,full"}
    whole = make_model(task, **spec, **size)
    args = options(**spec, **size, encoder_layers_to_keep="1,3")
    model = ClusterformerModel.build_model(args, task)
    sides = (model.encoder, model.decoder)
    kinds = [[h.written for x in side.layers for h in x.self_attn.kinds] for side in sides]
    assert kinds == [["neural", "window"], ["neural", "full", "neural"]]
    again = ClusterformerModel.build_model(args, task)  # as a checkpoint of the pruned model does
    model.load_state_dict(whole.state_dict())
    again.load_state_dict(model.state_dict())
    for kept, new in ((1, 0), (3, 1)):
        for name, tensor in whole.encoder.layers[kept].state_dict().items():
            assert torch.equal(again.encoder.layers[new].state_dict()[name], tensor), name


@torch.no_grad()
def test_centroids_are_handed_on():
    """CF22 section 3.1: the second layer clusters by what the first made of the centroids."""
    task, given, made = make_task(), [], []
    model = make_model(task, encoder_attention="neural").eval()

    def note(_, of, seen):
        given.append(of[0].centroids)
        made.append(seen.assignment.report.centroids)

    for layer in model.encoder.layers:
        (router,) = layer.self_attn.routers
        assert router.clustering.centroids is None
        router.register_forward_hook(note)
    model.encoder(sentences(task, [9, 12, 5], "left"))
    assert torch.equal(given[0], model.encoder.centroids.expand(3, -1, -1))
    assert torch.equal(given[1], made[0])
    assert not torch.equal(given[1], given[0])


def test_losses_are_means_over_the_layers_of_both_sides():
    task, reports = make_task(), []
    model = make_model(task, decoder_attention="neural").train()
    sample = make_sample(task)
    for module in model.modules():
        if type(module).__name__ == "Neural":
            module.register_forward_hook(lambda *of: reports.append(of[-1].assignment.report))
    _, size, logged = make_criterion(task)(model, sample)
    assert len(reports) == 4
    for name in ("clustering_loss", "sorting_loss"):
        mean = sum(getattr(report, name) for report in reports) / 4
        torch.testing.assert_close(logged[name] / size, mean.detach())
    sides = [logged[f"{side}_cluster_effective"] for side in ("encoder", "decoder")]
    torch.testing.assert_close(sum(sides) / 2, logged["cluster_effective"])


def test_layer_drop_hands_centroids_past_the_dropped_layer():
    """Whichever layer is left out, the first that runs starts from the stack's centroids."""
    task = make_task()
    drop = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
    model = make_model(task, **drop, encoder_layers=3).train()
    learned = 0
    for update in range(12):
        model.set_num_updates(update)
        names = gradients(model, make_criterion(task), make_sample(task)).keys()
        ran = any(name.startswith("encoder.layers.") and ".w_c." in name for name in names)
        assert ("encoder.centroids" in names) == ran
        learned += ran
    assert learned > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_attention": "window*0"}, r"--decoder-attention is window\*0.*allowed"),
        ({"encoder_attention_heads": 5}, "--encoder-attention-heads is 5; allowed"),
        ({"encoder_cluster_rule": "leaking-chunk"}, "--encoder-cluster-rule is leaking-chunk"),
        ({"decoder_cluster_rule": "chunk"}, "--decoder-cluster-rule is chunk; allowed: recent"),
        ({"cross_self_attention": True}, "--cross-self-attention is True; allowed"),
        ({"decoder_xformers_att_config": "{}"}, "--decoder-xformers-att-config is {}; allowed"),
        ({"base_layers": 1}, "--base-layers is 1; allowed"),
        ({"encoder_layers_to_keep": "2"}, "--encoder-layers-to-keep is 2; allowed: .* 0 to 1"),
        ({"decoder_layers_to_keep": "1,x"}, "--decoder-layers-to-keep is 1,x; allowed: .* 0 to 1"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_model(**changes)


def test_what_one_side_has_alone():
    """A copying start and sinks are of decoders; the rule chunk, an encoder's, has no gap."""
    kinds = {"encoder_attention": "neural", "decoder_attention": "neural"}
    more = {"short_convolution": 3, "copying_start": True, "attention_sinks": 2}
    model = make_model(**kinds, **more, cluster_gap=2)
    encoder, decoder = (side.layers[0].self_attn for side in (model.encoder, model.decoder))
    for attention, begins in ((encoder, False), (decoder, True)):
        assert torch.equal(attention.q_proj.weight, attention.k_proj.weight) == begins
    assert [attention.routers[0].rule.gap for attention in (encoder, decoder)] == [0, 2]
    assert [attention.routers[0].rule.sinks for attention in (encoder, decoder)] == [0, 2]
