"""A tokeniser for small vocabularies: a letter a token."""

from string import ascii_lowercase

from ditlab_models.contract import TextCodec


def letters(vocabulary: int = 11) -> TextCodec:
    """Encode a to z; other characters are skipped."""

    def encode(text: str) -> list[int]:
        return [ascii_lowercase.index(letter) for letter in text if letter in ascii_lowercase]

    def decode(tokens: list[int]) -> str:
        return "".join(ascii_lowercase[token] for token in tokens)

    return TextCodec(encode, decode, vocabulary, end=vocabulary - 1)
