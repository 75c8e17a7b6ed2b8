"""Labels, the null class and label dropout."""

import torch

from denoisers.layers.embeddings import LabelEmbedding, drop_labels


def test_null_class_is_one_more_vector():
    embedding = LabelEmbedding(10, 16)
    assert embedding.null == 10
    assert embedding(torch.tensor([0, 9, embedding.null])).shape == (3, 16)


def test_labels_drop_where_the_draw_is_below_the_rate():
    label = torch.tensor([3, 1, 4, 1])
    dropped = drop_labels(label, torch.tensor([0.0, 0.0999, 0.1, 0.9]), rate=0.1, null=10)
    assert dropped.tolist() == [10, 10, 4, 1]
    assert dropped.dtype == torch.int64
