"""Frozen encoders of captions and images: the one room that imports transformers, at their first use.

`text.FrozenTextEncoder` and `image.FrozenImageEncoder` read checkpoints as transformers saves them;
`maker.FeatureMaker` opens those that an experiment names when it needs them; `features` makes columns of a store.
"""
