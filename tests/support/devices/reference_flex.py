"""FlexAttention without a GPU: torch's own unfused reference, with gradients, in the place of the
compiled kernel.
"""

import pytest
from torch.nn.attention import flex_attention as torchs

from ditlab_models.dlm import network
from ditlab_models.layers import attention


def use_reference_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let language models attend by FlexAttention on every device, for the length of a test."""
    monkeypatch.setattr(network, "attention_backend", lambda *of: "flex")
    monkeypatch.setattr(attention, "compiled_flex_attention", lambda: torchs.flex_attention)
    # Torch refuses gradients on a CPU and the meta device, as it has kernels for neither; the
    # reference has them.
    monkeypatch.setattr(torchs, "_validate_device", lambda *of: None)
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
