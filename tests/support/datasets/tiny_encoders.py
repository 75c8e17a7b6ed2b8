"""Small checkpoints of Qwen3 and DINOv3 with random weights, in folders as transformers'
save_pretrained makes them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

END = "<|endoftext|>"
TEXTS = (
    "a red seven",
    "a green circle on the left of a blue square",
    "two white digits",
    "nothing at all",
)
"""Captions that the tokeniser is learned from."""


QWEN3_0_6B: dict[str, Any] = {
    "width": 1024,
    "depth": 28,
    "dtype": torch.bfloat16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "initializer_range": 0.02,
}
"""Options of `write_text_encoder` for all of Qwen3-0.6B but its vocabulary: 440 million weights,
0.9 GB.
"""
DINOV3_VIT_B16: dict[str, Any] = {
    "width": 768,
    "depth": 12,
    "patch": 16,
    "dtype": torch.bfloat16,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "initializer_range": 0.02,
}
"""Options of `write_image_encoder` for DINOv3 ViT-B/16: 86 million weights, 0.2 GB."""


def byte_level_bpe(vocabulary: int) -> Any:
    """Learn a tokeniser from `TEXTS`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def saved(folder: Path, make: Callable[[], Any], seed: int = 0) -> Path:
    """Save a network with random weights, the same every time. Returns the folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make().save_pretrained(folder)
    return folder


def write_text_encoder(
    folder: Path,
    width: int = 32,
    depth: int = 2,
    padding_side: str = "right",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Path:
    """Write a Qwen3 causal language model of so many features a token, with a byte-level BPE. Equal
    sizes give equal weights. `options` are further ones of Qwen3Config. Returns the folder."""
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    whole = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(300),
        pad_token=END,
        eos_token=END,
        padding_side=padding_side,
        model_max_length=4096,
    )
    whole.save_pretrained(folder)
    small = {
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        # in place of 0.02, so that a token's features depend visibly on those before it
        "initializer_range": 0.2,
    }
    config = Qwen3Config(
        vocab_size=len(whole),
        hidden_size=width,
        num_hidden_layers=depth,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=whole.pad_token_id,
        eos_token_id=whole.eos_token_id,
        **small | options,
    )
    return saved(folder, lambda: Qwen3ForCausalLM(config).to(dtype))


def write_image_encoder(
    folder: Path,
    width: int = 24,
    patch: int = 4,
    depth: int = 2,
    num_registers: int = 4,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Path:
    """Write a DINOv3 vision transformer of `width` features a patch, and return its folder.

    Equal sizes give equal weights. `options` are further ones of DINOv3ViTConfig.
    """
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    small = {"intermediate_size": 2 * width, "num_attention_heads": 2, "initializer_range": 0.2}
    config = DINOv3ViTConfig(
        patch_size=patch,
        hidden_size=width,
        num_hidden_layers=depth,
        image_size=8 * patch,
        num_register_tokens=num_registers,
        **small | options,
    )
    return saved(folder, lambda: DINOv3ViTModel(config).to(dtype))


def write_dinov2(folder: Path, width: int = 8, **options: Any) -> Path:
    """Write a DINOv2 of `width` features and four patches an image; `options` are further ones.
    Returns the folder.
    """
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=224,
        patch_size=112,
        initializer_range=0.2,
        **options,
    )
    return saved(folder, lambda: Dinov2Model(config))


def write_clip(folder: Path, width: int = 8) -> Path:
    """Write a CLIP of two small towers with the tokeniser of `write_text_encoder`, and return its
    folder.
    """
    from transformers import CLIPConfig, CLIPModel

    write_text_encoder(folder)  # for its tokeniser
    tower = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = CLIPConfig(
        text_config={**tower, "vocab_size": 400, "max_position_embeddings": 12, "eos_token_id": 0},
        vision_config={**tower, "image_size": 32, "patch_size": 16},
        projection_dim=width,
    )
    return saved(folder, lambda: CLIPModel(config))


def write_autoencoder(folder: Path, channels: int = 4, seed: int = 0, **options: Any) -> Path:
    """Write an AutoencoderKL that halves both sides of an image; `options` are further ones.
    Returns the folder.
    """
    from diffusers import AutoencoderKL

    network = partial(
        AutoencoderKL,
        latent_channels=channels,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **options,
    )
    return saved(folder, network, seed)
