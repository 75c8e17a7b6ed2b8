"""Parameter counts refuse components that miss, repeat or invent a parameter."""

import pytest
from torch import nn

from denoisers.parameters import count_network


class Pair(nn.Module):
    def __init__(self, groups) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 4, bias=False)
        self.groups = groups

    def components(self):
        return self.groups(self)


def test_trainable_leaves_out_what_takes_no_gradient():
    network = Pair(lambda n: {"a": [n.first], "b": [n.second]})
    network.first.bias.requires_grad_(False)
    count = count_network(network, nn.ModuleDict({"critic": nn.Linear(5, 1)}))
    assert (count.total, count.trainable) == (21, 18)
    assert count.components == {"a": 9, "b": 12}
    assert count.training_only == {"critic": 6}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda n: {"a": [n.first]}, "no component holds second.weight"),
        (lambda n: {"a": [n.first, n.second], "b": [n.second]}, "second.weight is counted twice: in 'a' and in 'b'"),
        (lambda n: {"a": [n], "b": [nn.Linear(1, 1)]}, "component 'b' holds a parameter that the network does not"),
    ],
)
def test_components_must_cover_every_parameter_once(groups, message):
    with pytest.raises(AssertionError, match=message):
        count_network(Pair(groups))
