"""Tokenisers of the library `tokenizers` (Hugging Face): any `tokenizer.json`, and byte-level BPE learned from text."""

import json
from collections.abc import Iterable
from types import ModuleType

import numpy as np

from ditlab.data.text.tokenizer import END_TEXT, Tokenizer
from ditlab.errors import UserError, first_line

END_TOKENS = (END_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>", "[SEP]")
"""Names of the token that ends a document; the first that a tokeniser has is taken, as its file names none."""
SMALLEST_BPE = 257
"""Smallest vocabulary of a BPE: the 256 bytes and the end token."""


class HuggingFaceTokenizer(Tokenizer):
    """Tokeniser of a `tokenizer.json`, applied to text alone.

    No template adds tokens, nothing is cut or padded, and the name of a special token in the text gives the tokens of
    its letters.
    """

    def __init__(self, content: bytes, origin: str):
        """Make the tokeniser of a `tokenizer.json` with this content; `origin` names it in messages.

        Raises UserError for one that cannot be read or has no end token, and where the library is not installed.
        """
        library = _library()
        try:
            self._tokenizer = tokenizer = library.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises no narrower class
            problem = f"{origin} is no tokeniser that the library tokenizers {library.__version__} reads ({error})"
            raise UserError(f"{problem}; name a tokenizer.json, or a newer version of the library.") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        known = tokenizer.get_vocab(with_added_tokens=True)
        end = next((known[name] for name in END_TOKENS if name in known), None)
        if end is None:
            raise UserError(
                f"{origin} has no token that ends a document (looked for {', '.join(END_TOKENS)}); add one of them to "
                "its added_tokens."
            )
        kind = str(json.loads(content)["model"].get("type", "bpe")).lower()
        super().__init__(kind=kind, vocabulary=max(known.values()) + 1, end=end, content=content)

    def ids(self, text: str) -> np.ndarray:
        """Return the text's tokens, (tokens,) in `dtype`."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, self.dtype)

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def learn_bpe(texts: Iterable[str], vocabulary: int) -> HuggingFaceTokenizer:
    """Learn a byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) of `vocabulary` tokens from texts.

    The end token is 0 and the 256 bytes follow, so that no text is out of the vocabulary. A small corpus may give
    fewer tokens than `vocabulary`. The same texts give the same tokeniser.
    """
    if vocabulary < SMALLEST_BPE:
        raise UserError(f"a BPE of {vocabulary} tokens is too small; it takes the 256 bytes and the end token.")
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return HuggingFaceTokenizer(tokenizer.to_str().encode(), "the BPE")


def fetch_tokenizer(name: str) -> HuggingFaceTokenizer:
    """Fetch a tokeniser by its name on the Hugging Face hub, or from the hub's cache on this machine.

    Raises UserError where it cannot be fetched.
    """
    library = _library()
    try:
        content = library.Tokenizer.from_pretrained(name).to_str().encode()
    except Exception as error:  # of the library, of the hub's client and of the network: they share no narrower class
        raise UserError(
            f"--tokenizer={name} is no file or folder here, and the Hugging Face hub does not give it "
            f"({first_line(error)}); check the name, or fetch its tokenizer.json on a "
            "machine that reaches the hub and name that file."
        ) from error
    return HuggingFaceTokenizer(content, name)


def _library() -> ModuleType:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise UserError(
            "any tokeniser but bytes needs the library tokenizers, which is not installed; "
            "`pip install 'ditlab[text]'` brings it."
        ) from error
    return tokenizers
