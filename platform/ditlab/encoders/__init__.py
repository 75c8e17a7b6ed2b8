"""Frozen encoders of captions and images: the only package that imports transformers, at their first use.

`text.FrozenTextEncoder` and `image.FrozenImageEncoder` read checkpoints as transformers saves them;
`extractor.FeatureExtractor` opens those that an experiment names; `features` computes columns of a store.
"""
