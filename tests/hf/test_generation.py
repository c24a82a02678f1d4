"""Generation with our bounded cache: the same tokens as without it, and as fairseq writes."""

import copy

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402
from torch import Tensor  # noqa: E402

from fairseq_clusterformer.corpora.binarize import symbol_dictionary  # noqa: E402
from fairseq_clusterformer.hf import ClusterformerCache  # noqa: E402
from fairseq_clusterformer.hf.tokenizer import write_tokenizer  # noqa: E402
from tests.hf.small import (  # noqa: E402
    VOCABULARY,
    language_model,
    padded,
    tokens,
    translator,
)
from tests.models.small import LLAMA  # noqa: E402

KINDS = ("window+neural", "taught", "full", "lsh(gap=3)", "window+kmeans", "strided")
HOW = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 10, "temperature": 0.7},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "guidance": {"guidance_scale": 1.5},
}


def written(model, ids: Tensor, **how: object) -> Tensor:
    torch.manual_seed(5)
    return model.generate(ids, max_new_tokens=12, eos_token_id=None, **how)


@pytest.mark.parametrize("kind", ["gated", "xl", "llama"])
def test_a_prompt_is_read_at_once(kind):
    """Each layer runs once for a portion; what follows is as in the parallel pass, or as if the
    tokens had come one by one. Rows are ragged, padded on the left."""
    model = language_model(**LLAMA) if kind == "llama" else language_model(attention=kind)
    ids, mask = padded([tokens(1, length)[0] for length in (23, 9, 1)], "left")
    calls, real = [], mask.bool()
    model.model.decoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        at_once = model(ids, attention_mask=mask, use_cache=True)
        assert len(calls) == 1
        caches, logits = [at_once.cache], []
        for size in (1, 6):  # tokens of a portion
            cache, found = ClusterformerCache(), []
            for i in range(0, ids.size(1), size):
                given = {"attention_mask": mask[:, : i + size], "cache": cache}
                found.append(model(ids[:, i : i + size], **given).logits)
            caches.append(cache)
            logits.append(torch.cat(found, dim=1)[real])
        more = tokens(3, 9)
        after = [model(more, cache=each).logits for each in caches]
    assert [cache.get_seq_length() for cache in caches] == [32, 32, 32]
    if kind in (*KINDS, "llama"):  # others learn clusters anew for each text
        logits.append(model(ids, attention_mask=mask).logits[real])
    for found in logits:
        torch.testing.assert_close(found, at_once.logits[real], rtol=1e-5, atol=1e-5)
    for found in after[1:]:
        torch.testing.assert_close(found, after[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("make", [language_model, translator])
def test_with_a_cache_as_without(make, how):
    model, ids = make(), tokens(3, 8)
    if (make, how) == (translator, "guidance"):
        pytest.skip("for what goes on from a prompt")
    found = written(model, ids, **HOW[how])
    assert torch.equal(found, written(model, ids, use_cache=False, **HOW[how]))
    assert torch.equal(found, written(model, ids, **HOW[how]))  # the same for the same seed


@pytest.mark.parametrize(
    ("make", "search", "side", "masked"),
    [
        (language_model, "greedy", "left", True),
        (language_model, "beams", "right", False),
        (translator, "beams", "left", False),
        (translator, "greedy", "right", True),
    ],
)
def test_padding_changes_nothing(make, search, side, masked):
    model = make(decoder_learned_pos=True)
    rows = [tokens(1, length)[0] for length in (9, 4, 1)]
    ids, mask = padded(rows, side)
    for more in ({}, {"use_cache": False}):
        options = more | HOW[search] | ({"attention_mask": mask} if masked else {})
        together = written(model, ids, **options)
        for row, found in zip(rows, together, strict=True):
            assert torch.equal(written(model, row[None], **HOW[search])[0][-12:], found[-12:])


@pytest.mark.parametrize("kind", ["window+neural", "gated", "xl"])
def test_packed_rows_are_rows_alone(kind):
    """As DataCollatorWithFlattening packs them."""
    model = language_model(attention=kind)
    rows = [tokens(1, length)[0] for length in (9, 1, 14)]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    packed = collate([{"input_ids": row} for row in rows])
    out = model(**packed)
    alone = [model(row[None], labels=row[None]) for row in rows]
    wanted = torch.cat([each.logits for each in alone], dim=1)
    torch.testing.assert_close(out.logits, wanted, rtol=1e-5, atol=1e-5)
    losses = [each.loss * (len(row) - 1) for each, row in zip(alone, rows, strict=True)]
    torch.testing.assert_close(out.loss, (losses[0] + losses[2]) / (8 + 13))


def test_a_long_text_keeps_a_cache_of_constant_size():
    """Once the rings are full, nothing grows, whatever the length."""
    sizes = {"decoder_layers": 1, "decoder_embed_dim": 8, "decoder_ffn_embed_dim": 8}
    model = language_model(attention="window+taught", decoder_attention_heads=2, **sizes)
    cache, token, seen = ClusterformerCache(), tokens(1, 1), []
    with torch.inference_mode():
        for until in (40, 120, 240):
            while cache.get_seq_length() < until:
                out = model(token, cache=cache)
                token = out.logits[:, -1, 4:].argmax(-1, keepdim=True) + 4
            seen.append(cache.num_bytes)
        at_once = model(tokens(1, 3000), use_cache=True).cache
    assert seen[0] == seen[1] == seen[2] == at_once.num_bytes
    keys = 4 * (1 + 3)  # of a window, and of the rings of three clusters, 4 each
    assert seen[0] < 2 * keys * (4 + 4 + 1) * 4  # key, value and bias of floats


def test_a_cache_can_be_copied_and_repeated():
    model, ids = language_model(), tokens(2, 8)
    with torch.no_grad():
        cache = model(ids[:, :7], use_cache=True).cache
        other = copy.deepcopy(cache)
        cache.batch_repeat_interleave(2)
        one = model(ids[:, 7:].repeat_interleave(2, 0), cache=cache).logits
        two = model(ids[:, 7:], past_key_values=other).logits  # its old name
    torch.testing.assert_close(one[::2], two)
    torch.testing.assert_close(one[1::2], two)


def test_what_a_cache_cannot_do_is_one_line():
    model, ids = language_model(), tokens(1, 4)
    cache = model.generate(ids, max_new_tokens=2, return_dict_in_generate=True).cache
    assert isinstance(cache, ClusterformerCache)
    with pytest.raises(ValueError, match="cannot be turned back; allowed:"):
        cache.crop(1)
    with pytest.raises(ValueError, match="attention_mask has 4 tokens; allowed: 9"):
        model(ids, attention_mask=torch.ones(1, 4), cache=cache)
    leaking = language_model(cluster_rule="leaking-chunk", attention="neural")
    with pytest.raises(ValueError, match="cannot decode step by step, .* allowed: a causal model"):
        leaking.generate(ids, max_new_tokens=2)


def test_a_conversation_goes_on_from_a_cache():
    model, ids = language_model(), tokens(1, 6)
    first = model.generate(ids, max_new_tokens=5, eos_token_id=None, return_dict_in_generate=True)
    more = torch.cat([first.sequences, tokens(1, 3)], dim=1)
    found = model.generate(more, cache=first.cache, max_new_tokens=6, eos_token_id=None)
    assert torch.equal(found, model.generate(more, max_new_tokens=6, eos_token_id=None))
    assert first.cache.get_seq_length() == 6 + 5 + 3 + 6 - 1  # none was read twice


@pytest.mark.parametrize("make", [language_model, translator])
def test_a_cache_that_is_asked_for_is_returned_or_refused(make):
    """Also with labels; never None without a word."""
    model, ids = make(), tokens(2, 6)
    given = {"input_ids": ids, "use_cache": True}
    if make is translator:
        given["decoder_input_ids"] = ids
    for more in ({}, {"labels": ids}):
        out = model(**given, **more)
        assert isinstance(out.cache, ClusterformerCache)
        assert out.cache.get_seq_length() == 6
    with pytest.raises(ValueError, match="use_cache is True, with output_hidden.*; allowed: one"):
        model(**given, output_hidden_states=True)
    for other in (transformers.DynamicCache(), ((ids, ids),)):
        with pytest.raises(ValueError, match="cache is (tuple|DynamicCache): .*; allowed: Cl"):
            model(**given | {"cache": other})
    with pytest.raises(ValueError, match="use_cache is True, in training; allowed: in eval"):
        model.train()(**given)


CANNOT = {
    "cache_implementation": "static",
    "is_assistant": True,
    "assistant_model": language_model,
    "prompt_lookup_num_tokens": 2,
}


@pytest.mark.parametrize("name", CANNOT)
@pytest.mark.parametrize("make", [language_model, translator])
def test_what_needs_another_cache_is_refused(make, name):
    model, value = make(), CANNOT[name]
    value = value() if callable(value) else value
    with pytest.raises(ValueError, match=f"{name} is .*allowed: None|is not supported with stat"):
        model.generate(tokens(1, 3), max_new_tokens=2, **{name: value})
    with pytest.raises(ValueError, match="continuous batching: .*; allowed: generate"):
        model.generate_batch([[4, 5]])


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["window+taught", "gated(exploration=0)"])
def test_compiled_training(kind):
    """The same gradients, also when an optimizer's step has begun an update."""
    model = language_model(decoder_layers=1, attention=kind, dropout=0.0, scouts=0).train()
    other, ids = copy.deepcopy(model), tokens(2, 9)
    compiled = torch.compile(other, backend="aot_eager")
    for update in (1, 2):
        losses = [each(ids, labels=ids).loss for each in (model, compiled)]
        torch.testing.assert_close(*losses)
        for each, loss in zip((model, other), losses, strict=True):
            loss.backward()
            torch.optim.SGD(each.parameters(), 0.1).step()
            assert each.model.decoder.num_updates == update
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.whole
def test_compiled_generation():
    """Steps as well, whose state grows and then comes round."""
    model, ids = language_model(decoder_layers=1, attention="window(2)"), tokens(2, 2)
    how = {"max_new_tokens": 3, "eos_token_id": None}
    wanted = model.generate(ids, **how)
    model.compile(backend="aot_eager", dynamic=True)
    assert torch.equal(model.generate(ids, **how), wanted)


@pytest.mark.parametrize("kind", ["translator", "taught", "llama"])
def test_exported_as_a_graph(kind):
    """One graph for padded rows and others."""
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    model = translator(**layers)
    if kind != "translator":
        form = LLAMA if kind == "llama" else {"attention": kind}
        model = language_model(**form, decoder_layers=1)
    ids, mask = padded([tokens(1, length)[0] for length in (9, 4, 6)], "right")
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if kind == "translator":
        given["decoder_input_ids"] = tokens(3, 5)
    graph = torch.export.export(model, (), given).module()
    for more in ({}, {"input_ids": tokens(3, 9), "attention_mask": torch.ones_like(mask)}):
        found, wanted = (each(**given | more).logits for each in (graph, model))
        real = slice(None) if more or kind == "translator" else mask.bool()
        torch.testing.assert_close(found[real], wanted[real], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> transformers.PreTrainedTokenizerFast:
    """Of words that no tokenizer can spell anew."""
    out = tmp_path_factory.mktemp("words")
    symbols = symbol_dictionary(f"w{number}" for number in range(VOCABULARY - 4))
    write_tokenizer(out, out, symbols, "text", {})
    return transformers.AutoTokenizer.from_pretrained(out)


@pytest.mark.parametrize("make", [language_model, translator])
def test_it_stops_at_a_text(make, tokenizer):
    model, ids = make(), tokens(1, 5)
    model.generation_config.suppress_tokens = [0, 1, 2, 3]
    whole = written(model, ids)
    begun = whole.size(1) - 12
    text = tokenizer.decode(whole[0, begun : begun + 6])
    found = written(model, ids, tokenizer=tokenizer, stop_strings=[text[2:], "none"])
    assert torch.equal(found, whole[:, : begun + 6])
    assert torch.equal(written(model, ids, tokenizer=tokenizer), whole)


def test_tokens_are_healed(tokenizer):
    """The last word of a prompt may be the beginning of another."""
    model, ids = language_model(), tokenizer("w5 w2", return_tensors="pt").input_ids
    found = written(model, ids, tokenizer=tokenizer, token_healing=True)[0]
    assert found[: len(ids[0]) - 1].tolist() == ids[0, :-1].tolist()
    assert tokenizer.decode(found).split()[1].startswith("w2")
