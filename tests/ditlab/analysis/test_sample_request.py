"""What the words of `ditlab sample` ask for, and the picture files that it reads and writes."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from denoisers.contract import Picture, Prompt, SampleRequest
from ditlab.analysis.sampling.pictures import save_pictures, start_image
from ditlab.analysis.sampling.request import Asked, folder_name, num_samples, sample_request
from ditlab.analysis.sampling.overrides import sampling_changes
from ditlab.errors import UserError

NOTHING = Asked(
    label=None, prompts=(), prompt_file=None, negative_prompt=None, placed=(), size=None, start=None, strength=None
)


@dataclass
class Writer:
    """Of one text for all samples."""

    draws_per_prompt: bool = False


class Painter:
    """Of pictures, some for each prompt."""

    draws_per_prompt = True
    takes_rows = "conditions"
    max_batch_size = None
    size = (8, 12)

    def conditions(self, num, request): ...
    def sample(self, network, conditions, num, generator, trajectory=False): ...
    def show(self, samples): ...
    def pictures(self, samples): ...


def asked(sampler=None, seed=None, **words) -> SampleRequest:
    return sample_request(replace(NOTHING, **words), seed, sampler or Painter())


def test_prompts_come_from_the_command_line_and_then_from_the_file(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffein Würfel\r\n\n  a cube \n".encode())
    request = asked(prompts=("first",), prompt_file=file, negative_prompt="blur", seed=4)
    assert request.prompts == [Prompt("first"), Prompt("ein Würfel"), Prompt("a cube")]
    assert request.negative_prompt == "blur" and request.seed == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"--prompts .*list\.txt cannot be read \(No such file or directory\); name a file"),
        (b"", r"--prompts .*list\.txt holds no prompt; write one in every line\."),
        (b" \n\r\n", r"holds no prompt"),
        (b"caf\xe9\n", r"is not UTF-8 \(at byte 3\); save it as UTF-8"),
    ],
)
def test_a_file_of_prompts_that_is_none(tmp_path, content, message):
    file = tmp_path / "list.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        asked(prompt_file=file)


@pytest.mark.parametrize(("text", "size"), [("256x192", (256, 192)), ("64", (64, 64))])
def test_sizes(text, size):
    assert asked(size=text).size == size


@pytest.mark.parametrize("text", ["", "20by20", "x20", "20x", "-4", "3.5", "10000", "1x2x3"])
def test_what_is_no_size(text):
    with pytest.raises(UserError, match=r"write height x width in pixels \(at most 9999\), such as 256x192"):
        asked(size=text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"prompts": ("a", "b")}, r"--prompt was given 2 times: .*; give it once\."),
        ({"prompt_file": Path("list.txt")}, r"--prompts list\.txt: .*; leave it out\."),
        ({"negative_prompt": "c"}, r"--negative-prompt 'c': this run's family avoids no text; leave it out\."),
        ({"size": "64"}, r"--size 64: this run's family draws samples of one size; leave it out\."),
        ({"start": Path("a.png")}, r"--start a\.png: this run's family starts from no picture; leave it out\."),
        ({"strength": 0.5}, r"--strength 0\.5 needs a picture to start from; name one with --start\."),
    ],
)
def test_other_families_refuse_what_they_do_not_take(words, message):
    with pytest.raises(UserError, match=message):
        asked(Writer(), **words)


def test_other_families_get_one_prompt_and_no_seed():
    request = asked(Writer(), prompts=("Once",), placed=((-3, "end"),), label=2, seed=5)
    assert request.prompts == [Prompt("Once"), Prompt("end", -3)]
    assert request.label == 2 and request.seed is None


def test_num_is_of_each_prompt():
    three = asked(prompts=("a", "b", "c"))
    assert num_samples(5, three, Painter()) == 15
    assert num_samples(None, three, Painter()) == 12
    assert num_samples(5, asked(), Painter()) == 5 and num_samples(None, asked(), Painter()) is None
    assert num_samples(5, asked(Writer(), prompts=("a",)), Writer()) == 5


def test_every_request_has_a_folder_of_its_own():
    start = torch.zeros(3, 8, 12)
    requests = [
        SampleRequest(), SampleRequest(label=1), SampleRequest(prompts=[Prompt("a")]),
        SampleRequest(negative_prompt="a"),
        SampleRequest(size=(8, 8)), SampleRequest(seed=0), SampleRequest(seed=1), SampleRequest(start=start),
        SampleRequest(start=start + 1), SampleRequest(start=start, strength=0.5),
    ]  # fmt: skip
    names = {folder_name(7, {"steps": 4}, None, request, seed=0) for request in requests}
    assert len(names) == len(requests) and all(name.startswith("step7-4") for name in names)


def test_finished_runs_take_other_places_of_encoders():
    (change,) = sampling_changes({}, ["encoders.text=/models/qwen"])
    assert change.path == "encoders.text" and change.value == "/models/qwen"


# Picture files


def test_a_start_is_cropped_around_its_centre_and_scaled(tmp_path):
    """A green square with red and blue beside it: only green is left of it, in twice the size."""
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, :10, 0], pixels[:, 10:20, 1], pixels[:, 20:, 2] = 255, 255, 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    image = start_image(tmp_path / "wide.png", (20, 20))
    assert image.shape == (3, 20, 20) and image.dtype == torch.float32
    torch.testing.assert_close(image[:, 10, 10], torch.tensor([-1.0, 1.0, -1.0]))
    assert image[1, :, 2:-2].min() > 0.9  # the outermost columns, as resampling has it, see a little beyond


def test_a_start_of_the_asked_size_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "start.png")
    request = asked(start=tmp_path / "start.png")  # of the sampler's own size
    torch.testing.assert_close(request.start, torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1)
    assert request.strength == 0.6
    assert asked(start=tmp_path / "start.png", strength=0.2, size="4").start.shape == (3, 4, 4)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16"])
def test_starts_of_any_colours_become_red_green_and_blue(tmp_path, mode):
    Image.new(mode, (16, 16)).save(tmp_path / "start.png")
    assert start_image(tmp_path / "start.png", (8, 8)).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"text", "no picture in BMP, JPEG, PNG or WEBP")]
)
def test_a_start_that_is_no_picture(tmp_path, content, reason):
    file = tmp_path / "start.png"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=rf"--start .*start\.png cannot be read \({reason}\); name another picture\."):
        start_image(file, (8, 8))


def test_a_damaged_start_is_refused(tmp_path):
    file = tmp_path / "start.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"cannot be read"):
        start_image(file, (8, 8))


def test_pictures_keep_their_pixels_and_tell_their_settings(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 3), np.uint8)
    pictures = [Picture(one, {"prompt": f"Würfel 骰子 {i}", "seed": str(i)}) for i, one in enumerate(pixels)]
    files = list(save_pictures(pictures, {"run": "abc"}, tmp_path))
    assert [file.name for file in files] == ["000.png", "001.png"]
    for i, file in enumerate(files):
        with Image.open(file) as image:
            assert image.text == {"ditlab.run": "abc", "ditlab.prompt": f"Würfel 骰子 {i}", "ditlab.seed": str(i)}
            assert np.array_equal(np.asarray(image), pixels[i])


def test_numbers_of_many_pictures_sort(tmp_path):
    pictures = [Picture(np.zeros((1, 1, 3), np.uint8), {})] * 1001
    names = [file.name for file in save_pictures(pictures, {}, tmp_path)]
    assert names[0] == "0000.png" and names[-1] == "1000.png" and names == sorted(names)
