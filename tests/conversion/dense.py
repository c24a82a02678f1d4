"""Dense models of transformers, small and as if trained, with their tokenizers."""

import json
from pathlib import Path

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.data.subword_models import write_sentencepiece
from tests.data.tokenizers import byte_pairs

ENGLISH = [
    "The cat sat on the mat.",
    "A dog, it was told, ran é away from the small cat.",
    "The ball is red.",
]
GERMAN = ["Die kleine Katze saß auf der Matte.", "Ein Hund lief weg.", "Der Ball ist rot."]
TEXT = "\n".join([*ENGLISH, ""]) * 40
OF_PAIRS = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 48,
}


def save(folder: Path, model: PreTrainedModel) -> None:
    """Save a model whose parameters are not 0 or 1, but for what Marian computes. The bias of its
    logits ends texts now and then."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            norm = "weight" in name and ("norm" in name.lower() or "ln_" in name)
            torch.nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.4)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, model.config.eos_token_id] += 2.5
    model.save_pretrained(folder)


def save_byte_pairs(
    folder: Path, size: int, special: list[str], first: str | None = None, **options
) -> None:
    """A byte-level BPE of so many pieces; with <unk>, <mask> comes last.

    Args:
        first: what stands in front of each text.
        options: of the tokenizer.
    """
    tokenizer = byte_pairs([TEXT], size - ("<unk>" in special), special)
    if "<unk>" in special:
        tokenizer.add_special_tokens(["<mask>"])
    assert tokenizer.get_vocab_size() == size
    if first is not None:
        around = {"single": f"{first} $A", "special_tokens": [(first, special.index(first))]}
        tokenizer.post_processor = processors.TemplateProcessing(**around)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)


def save_pieces(folder: Path, **options) -> None:
    """Pieces that begin words by a mark, and bytes for what they lack, as sentencepiece's."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=60, show_progress=False))
    found = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    numbers = {token: i for i, token in enumerate([*tokens, *found["vocab"]])}
    merges = [tuple(merge) for merge in found["merges"]]
    tokenizer = Tokenizer(models.BPE(numbers, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])  # as Llama's
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)


def gpt2(folder: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=285, n_positions=64, n_embd=16, n_layer=2, n_head=4, eos_token_id=0
    )
    config.bos_token_id = 0
    save(folder, transformers.GPT2LMHeadModel(config))
    save_byte_pairs(folder, 285, ["<|endoftext|>"])


def roberta(folder: Path) -> None:
    config = transformers.RobertaConfig(
        vocab_size=290,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=66,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    save(folder, transformers.RobertaForMaskedLM(config))
    save_byte_pairs(folder, 290, ["<s>", "<pad>", "</s>", "<unk>"])


def bart(folder: Path) -> None:
    config = transformers.BartConfig(vocab_size=290, **OF_PAIRS)
    save(folder, transformers.BartForConditionalGeneration(config))
    save_byte_pairs(folder, 290, ["<s>", "<pad>", "</s>", "<unk>"])


def marian(folder: Path) -> None:
    folder.mkdir()
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        model = write_sentencepiece(folder / f"{name}.spm", lines * 9, vocab_size=40)
        read = sentencepiece.SentencePieceProcessor(model_file=str(model))
        for i in range(3, len(read)):
            vocabulary.setdefault(read.id_to_piece(i), len(vocabulary))
    pad = vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.MarianConfig(
        vocab_size=pad + 1,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        activation_function="swish",
        scale_embedding=True,
        **OF_PAIRS,
    )
    save(folder, transformers.MarianMTModel(config))


OF_LLAMA = {
    "vocab_size": 330,  # more than the tokenizers have
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"


def llama(folder: Path) -> None:
    """Of the third generation: slower positions, and a token in front of each text."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    scaling = dict(zip(names, (4.0, 1.0, 4.0, 32), strict=True))
    rope = {"rope_type": "llama3", "rope_theta": 5e3, **scaling}
    tokens = {"bos_token_id": 1, "eos_token_id": [0, 2]}
    config = transformers.LlamaConfig(rope_parameters=rope, **tokens, **OF_LLAMA)
    save(folder, transformers.LlamaForCausalLM(config))
    special = ["<|end|>", "<s>", "</s>", "<unk>"]
    how = {"eos_token": "<|end|>", "chat_template": CHAT}
    save_byte_pairs(folder, 280, special, first="<s>", **how)


def mistral(folder: Path) -> None:
    """It sees the latest 8 tokens, at half their distances."""
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    how = OF_LLAMA | {"rope_parameters": rope}
    config = transformers.MistralConfig(sliding_window=8, head_dim=6, **how)
    save(folder, transformers.MistralForCausalLM(config))
    save_pieces(folder, eos_token="</s>", chat_template=CHAT)


def qwen2(folder: Path) -> None:
    config = transformers.Qwen2Config(tie_word_embeddings=True, eos_token_id=0, **OF_LLAMA)
    save(folder, transformers.Qwen2ForCausalLM(config))
    save_byte_pairs(folder, 280, ["<|end|>", "<pad>"], chat_template=CHAT)


def qwen3(folder: Path) -> None:
    """Its second layer sees the latest 8 tokens; texts beyond 32 tokens by YaRN."""
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 4.0}
    window["rope_parameters"] = rope | {"original_max_position_embeddings": 32}
    config = transformers.Qwen3Config(head_dim=8, eos_token_id=0, **window, **OF_LLAMA)
    save(folder, transformers.Qwen3ForCausalLM(config))
    save_byte_pairs(folder, 280, ["<|end|>"], chat_template=CHAT)


#: those of Llama's form
LLAMAS = {make.__name__: make for make in (llama, mistral, qwen2, qwen3)}
MAKERS = {make.__name__: make for make in (gpt2, roberta, marian, bart)}
