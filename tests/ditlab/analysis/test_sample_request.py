"""Requests that sample options describe, and the folders that they name."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ditlab.analysis.drawing import class_number, folder_name, num_samples, sample_request
from ditlab.analysis.sample_options import SampleKeywords, SampleOptions, sampling_changes
from ditlab_models.contract import Prompt, SampleRequest
from support.damage import refused


@dataclass
class Writer:
    """A sampler of one text for all samples."""

    draws_per_prompt: bool = False


class Painter:
    """A sampler of pictures, some for each prompt."""

    draws_per_prompt = True
    takes_rows = "conditions"
    max_batch_size = None
    size = (8, 12)

    def conditions(self, num, request): ...
    def sample(self, network, conditions, num, generator, trajectory=False): ...
    def show(self, samples): ...
    def pictures(self, samples): ...


def request_for(sampler=None, **options):
    return sample_request(SampleOptions(**options), sampler or Painter())


def test_prompts_come_from_the_options_and_then_from_the_file(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffein Würfel\r\n\n  a cube \n".encode())
    request = request_for(prompts=("first",), prompt_file=file, negative_prompt="blur", seed=4)
    assert request.prompts == [Prompt("first"), Prompt("ein Würfel"), Prompt("a cube")]
    assert request.negative_prompt == "blur" and request.seed == 4


def test_a_file_without_prompts_is_refused(tmp_path):
    file = tmp_path / "list.txt"
    for content, message in (
        (
            None,
            r"--prompts .*list\.txt cannot be read \(No such file or directory\); name a UTF-8 file",
        ),
        (b" \n\r\n", r"--prompts .*list\.txt holds no prompt; write one in every line\."),
        (b"caf\xe9\n", r"cannot be read \('utf-8' codec can't decode .*\); name a UTF-8 file"),
    ):
        if content is not None:
            file.write_bytes(content)
        with refused(message):
            request_for(prompt_file=file)


def test_sizes():
    for text, size in (("256x192", (256, 192)), ("64", (64, 64))):
        assert request_for(size=text).size == size
    for text in ("", "20by20", "x20", "20x", "-4", "10000", "1x2x3"):
        with refused(r"write height x width in pixels \(at most 9999\), such as 256x192"):
            request_for(size=text)


def test_other_families_refuse_options_that_they_do_not_take():
    for options, message in (
        ({"prompts": ("a", "b")}, r"--prompt was given 2 times: .*; give one\."),
        ({"prompt_file": Path("list.txt")}, r"--prompts list\.txt: .*; leave it out\."),
        ({"negative_prompt": "c"}, "--negative-prompt c: this run's family takes no --negative-p"),
        ({"size": "64"}, r"--size 64: this run's family takes no --size; leave it out\."),
        ({"start": Path("a.png")}, r"--start a\.png: this run's family takes no --start; leave"),
        (
            {"strength": 0.5},
            r"--strength 0\.5 needs a picture to start from; name one with --start\.",
        ),
    ):
        with refused(message):
            request_for(Writer(), **options)


def test_other_families_get_one_prompt_and_no_seed():
    request = request_for(Writer(), prompts=("Once",), placed=((-3, "end"),), label=2, seed=5)
    assert request.prompts == [Prompt("Once"), Prompt("end", -3)]
    assert request.label == 2 and request.seed is None


def test_a_start_of_the_requested_size_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "start.png")
    request = request_for(start=tmp_path / "start.png")  # of the sampler's own size
    torch.testing.assert_close(request.start, torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1)
    assert request.strength == 0.6
    small = request_for(start=tmp_path / "start.png", strength=0.2, size="4")
    assert small.start.shape == (3, 4, 4) and small.strength == 0.2


def test_num_is_the_number_of_samples_of_each_prompt():
    three = request_for(prompts=("a", "b", "c"))
    assert num_samples(5, three, Painter()) == 15
    assert num_samples(None, three, Painter()) == 12
    assert num_samples(5, request_for(), Painter()) == 5
    assert num_samples(None, request_for(), Painter()) is None
    assert num_samples(5, request_for(Writer(), prompts=("a",)), Writer()) == 5


def test_every_request_has_a_folder_of_its_own():
    start = torch.zeros(3, 8, 12)
    requests = [
        SampleRequest(),
        SampleRequest(label=1),
        SampleRequest(prompts=[Prompt("a")]),
        SampleRequest(negative_prompt="a"),
        SampleRequest(size=(8, 8)),
        SampleRequest(seed=0),
        SampleRequest(seed=1),
        SampleRequest(start=start),
        SampleRequest(start=start + 1),
        SampleRequest(start=start, strength=0.5),
    ]
    names = {folder_name(7, {"steps": 4}, None, request, seed=0) for request in requests}
    assert len(names) == len(requests) and all(name.startswith("step7-4") for name in names)


def test_finished_runs_take_other_places_of_encoders_and_no_other_changes():
    (change,) = sampling_changes({}, ["encoders.text=/models/qwen"])
    assert change.path == "encoders.text" and change.value == "/models/qwen"
    for override in ("model.width=8", "encoders={}"):
        with refused("takes sampling settings and other places of its encoders alone"):
            sampling_changes({}, [override])


def test_noise_is_refused_for_a_sampler_that_takes_none():
    with refused("noise was given, and this run's family takes none"):
        request_for(noise=torch.zeros(2, 3))


def test_keywords_become_options():
    assert {"num", *SampleKeywords.__annotations__} == {each.name for each in fields(SampleOptions)}
    assert SampleOptions.of(None, {}) == SampleOptions()
    given = {"size": (4, 8), "start": "a.png", "prompts": ["a"], "placed": [(1, "b")], "seed": 0}
    assert SampleOptions.of(3, given) == SampleOptions(
        3, size="4x8", start=Path("a.png"), prompts=("a",), placed=((1, "b"),), seed=0
    )
    assert SampleOptions.of(None, {"size": 16}).size == "16"


def test_a_class_by_its_number_or_name():
    for label in (3, "3", "dog", None):
        assert SampleOptions.of(1, {"label": label}).label == label
    assert class_number("dog", ("cat", "dog")) == 1 and class_number("1", ("cat", "dog")) == 1
    assert class_number("2", ("10", "2")) == 1, "a name before a number"
    for names, message in (
        (("cat", "dog"), r" is no class of this run's data; their names are cat, dog\.$"),
        (
            [f"n{number}" for number in range(100)],
            r" is no class .* names are n0, .*, n29 and 70 more\.$",
        ),
        ((), ": this run's data have no names of classes; give the class's number"),
    ):
        with refused(f"--label cow{message}"):
            class_number("cow", names)
    with refused(r"--label dog: an export knows no names of classes; give"):
        request_for(label="dog")
