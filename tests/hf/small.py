"""Small models of transformers, and what several tests ask of them."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairseq_clusterformer import hf

PAD, EOS = 1, 2
SIZES = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 4}
OPTIONS = {
    "clusterformer_lm_tiny": {
        **{f"decoder_{name}": size for name, size in SIZES.items()},
        **{"attention": "window+taught", "attention_window": 4, "num_clusters": 3, "scouts": 4},
        "share_decoder_input_output_embed": True,
    },
    "clusterformer_tiny": {
        **{
            f"{side}_{name}": size
            for side in ("encoder", "decoder")
            for name, size in SIZES.items()
        },
        **{"encoder_attention": "neural", "decoder_attention": "window+neural", "dropout": 0.0},
        **{"attention_window": 4, "num_clusters": 3, "share_all_embeddings": True},
    },
    "clusterformer_masked_lm_tiny": {
        **{f"encoder_{name}": size for name, size in SIZES.items()},
        **{"encoder_attention": "window+neural", "attention_window": 4, "num_clusters": 3},
    },
}
OPTIONS["clusterformer_reader_tiny"] = {
    **{f"encoder_{name}": size for name, size in SIZES.items()},
    **{"window_size": 16, "window_stride": 8, "window_positions": 40, "cluster_layers": "1"},
    **{"cluster_attention": "taught", "attention_window": 4, "num_clusters": 3, "scouts": 8},
}
OPTIONS["clusterformer_classifier_tiny"] = OPTIONS["clusterformer_masked_lm_tiny"]
VOCABULARY = 40


def config(architecture: str, **options: object) -> hf.ClusterformerConfig:
    return hf.ClusterformerConfig(
        architecture=architecture,
        options={**OPTIONS[architecture], **options},
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        decoder_start_token_id=EOS,
    )


def language_model(**options: object) -> hf.ClusterformerForCausalLM:
    """In evaluation."""
    return hf.ClusterformerForCausalLM(config("clusterformer_lm_tiny", **options)).eval()


def translator(**options: object) -> hf.ClusterformerForConditionalGeneration:
    model = hf.ClusterformerForConditionalGeneration(config("clusterformer_tiny", **options))
    return model.eval()


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(4, VOCABULARY, (rows, length))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows [N] of several lengths as one batch: tokens and mask, int64 [B, longest]."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), PAD)
    for i, row in enumerate(rows):
        ids[i, slice(longest - len(row), None) if side == "left" else slice(len(row))] = row
    return ids, ids.ne(PAD).long()


def saved_again(model: PreTrainedModel, folder, auto: type) -> PreTrainedModel:
    """Saved, and loaded by an Auto class."""
    model.save_pretrained(folder)
    return auto.from_pretrained(folder).eval()


def assert_same_tensors(model: PreTrainedModel, other: PreTrainedModel) -> None:
    state, found = model.state_dict(), other.state_dict()
    assert state.keys() == found.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, found[name]), name
