"""Frozen encoders of captions and images: the only package that imports transformers, at their first use.

`text.FrozenTextEncoder` and `image.FrozenImageEncoder` read checkpoints as transformers saves them;
`features.FeatureExtractor` opens those that an experiment names.
"""
