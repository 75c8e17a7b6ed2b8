"""The language model's specs: batch fields and steps."""

from ditlab_models.dlm.spec import BlockSampling, DLMSamplingSpec, DLMSpec


def test_batch_fields():
    (field,) = DLMSpec(length=64, vocabulary=257).batch_fields()
    assert (field.name, field.shape, field.dtype, field.num_classes) == (
        "tokens",
        (64,),
        "int64",
        257,
    )


def test_default_steps():
    assert DLMSamplingSpec().num_steps == 128
    assert DLMSamplingSpec(block=BlockSampling()).num_steps == 50
    assert DLMSamplingSpec(block=BlockSampling(), steps=7).num_steps == 7
