"""Options of the families' batch fields: each is a setting of the model's spec that sets the size
it stands for.
"""

import pytest

from ditlab_models.families import family_names, find_family


def claims(field):
    """The options of a field, each with the size that it sets."""
    options = field.options
    assert len(options.shape) in (0, len(field.shape))
    yield from zip(options.shape, field.shape, strict=False)
    yield from ((options.num_classes, field.num_classes), (options.multiple_of, field.multiple_of))
    yield options.at_most, field.at_most


def changed(model, option, value):
    other = model.model_copy(update={option: value})
    return {field.name: list(claims(field)) for field in other.batch_fields()}


@pytest.mark.parametrize("name", family_names())
def test_options_set_the_sizes_that_they_stand_for(name):
    family = find_family(name)
    for update in ({}, {"num_classes": 7}, {"text_encoder": "learned"}):
        model = family.model()
        model = model.model_copy(
            update={key: value for key, value in update.items() if key in type(model).model_fields}
        )
        for field in model.batch_fields():
            for number, (path, size) in enumerate(claims(field)):
                if not path:
                    continue
                section, _, option = path.partition(".")
                assert section == "model" and getattr(model, option) == size
                assert changed(model, option, 12345)[field.name][number] == (path, 12345)
