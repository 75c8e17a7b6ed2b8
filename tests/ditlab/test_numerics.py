"""Versions of the numbers that a run computes."""

from ditlab import numerics
from ditlab.numerics import NUMERICS_VERSION, ON_GPUS_ALONE, version_warning


def test_a_version_warns_where_it_changed_numbers(monkeypatch):
    for device_type in ("cpu", "cuda"):
        assert version_warning(NUMERICS_VERSION, device_type) == ""
        assert "numerics version 2" in version_warning(2, device_type)
        assert "numerics version 9" in version_warning(9, device_type)  # from a later release
    assert ON_GPUS_ALONE == (4, 5)
    monkeypatch.setattr(numerics, "NUMERICS_VERSION", 5)
    assert version_warning(3, "cpu") == "" and "numerics version 3" in version_warning(3, "cuda")
