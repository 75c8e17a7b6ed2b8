"""Patches and back."""

import torch

from denoisers.layers.embeddings import PatchEmbedding, patchify, unpatchify


def test_unpatchify_undoes_patchify():
    for channels, rows, columns, size in ((1, 7, 7, 4), (3, 2, 5, 3), (4, 3, 3, 1)):
        image = torch.randn(2, channels, rows * size, columns * size)
        patches = patchify(image, size)
        assert patches.shape == (2, rows * columns, size * size * channels)
        assert torch.equal(unpatchify(patches, size, rows, channels), image)


def test_patches_are_read_row_by_row():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert patchify(image, 2)[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_patch_embedding_is_one_linear_map_of_every_patch():
    embedding = PatchEmbedding(3, 4, 16).double()
    image = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    weight = embedding.projection.weight.permute(0, 2, 3, 1).flatten(1)  # to patchify's order: row, column, channel
    expected = patchify(image, 4) @ weight.T + embedding.projection.bias
    torch.testing.assert_close(embedding(image), expected)
