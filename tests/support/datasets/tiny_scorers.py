"""Small causal language models in folders, as transformers' save_pretrained writes them."""

from pathlib import Path

import numpy as np
import torch

from support.datasets.tiny_encoders import END, byte_level_bpe, saved


def write_chain_scorer(folder: Path, transition: np.ndarray) -> Path:
    """Write a GPT-2 without blocks or tokeniser that knows a Markov chain (V, V): its probabilities
    are the chain's.

    A normed one-hot vector is its token's less a constant, so that the head's columns and the
    norm's bias give ln p.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    size, log_p = len(transition), torch.from_numpy(np.log(transition)).float()
    config = GPT2Config(
        vocab_size=size,
        n_embd=size,
        n_layer=0,
        n_head=1,
        n_positions=64,
        layer_norm_epsilon=1e-12,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    std = float(torch.eye(size)[0].std(unbiased=False))
    with torch.no_grad():
        model.transformer.wte.weight.copy_(torch.eye(size))
        model.transformer.wpe.weight.zero_()
        model.transformer.ln_f.weight.fill_(1)
        model.transformer.ln_f.bias.fill_(1 / (size * std))
        model.lm_head.weight.copy_(std * log_p.T)
    model.save_pretrained(folder)
    return folder


def write_gpt2(folder: Path, positions: int = 16) -> Path:
    """Write a random GPT-2 with a byte-level BPE. Returns the folder."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(290), eos_token=END)
    tokenizer.save_pretrained(folder)
    config = GPT2Config(
        vocab_size=290, n_embd=16, n_layer=1, n_head=2, n_positions=positions, eos_token_id=0
    )
    return saved(folder, lambda: GPT2LMHeadModel(config))
