"""Regional compilation: one graph a block kind, numbers of the eager step, exact resume, every ZeRO
stage.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from ditlab.engine.distributed import single_process
from ditlab.engine.engine import Engine
from ditlab.inputs.noise import KeyedNoise, fixed_noise
from ditlab.spec.compiling import missing_to_compile
from ditlab.spec.files import load_experiment
from ditlab_models.contract import ANY, RealRows, SampleRequest
from support.garbage import exempt_imports
from support.trainings.engines import Job, Pass, Step, drive_here, drive_workers, module_for
from support.trainings.workers import newest, same_state, tiny, train_here

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SMALL = {
    "digits/dit": ["model.depth=3", "model.width=32"],
    "digits/unet": ["model.width=16"],
    "pixelhdm/small": [
        "model.width=64",
        "model.num_heads=2",
        "model.num_kv_heads=1",
        "model.patch_depth=3",
    ],
    "region/small": ["model.width=32", "model.depth=3"],
    "dlm/small": ["model.width=96", "model.depth=3"],
}
"""Changes of shipped experiments that leave every kind of block twice."""


def small(name, **engine):
    changes = [*SMALL[name], "training.precision=fp32", "schedule={kind: constant}"]
    spec = load_experiment(EXPERIMENTS / f"{name}.yaml", changes)
    return spec.replace("engine", {"zero": {"stage": 1}, "compile": False, **engine})


def batch_for(experiment, size, length):
    """Batch of the family's fields; images are 16 pixels wide, and `length` is that of the other
    free axes.
    """
    generator = torch.Generator().manual_seed(size * 100 + length)
    found = {}
    for field in experiment.model.batch_fields():
        free = 16 if field.name == "image" else length
        shape = (size, *(free if axis == ANY else axis for axis in field.shape))
        if field.dtype == "int64":
            found[field.name] = torch.randint(1, field.num_classes or 2, shape, generator=generator)
        elif field.dtype == "bool":
            found[field.name] = torch.ones(shape, dtype=torch.bool)
        else:
            found[field.name] = torch.rand(shape, generator=generator) * 2 - 1
    return found


@dataclass(frozen=True)
class Measured:
    """Numbers of one step."""

    loss: float
    norm: float
    """Of the gradient."""
    moments: dict[str, torch.Tensor]
    """Adam's first moments by parameter: decaying sums of the gradients so far."""


def steps(experiment, sizes):
    """Take a step for each (batch size, length), with an evaluation after each."""
    found = []
    with single_process(use_gpu=False) as rank:
        module = module_for(experiment)
        engine = Engine(module, experiment, rank)
        for number, (size, length) in enumerate(sizes):
            batch = batch_for(experiment, size, length)
            noise = KeyedNoise(0, "train", number, 0, size, torch.device("cpu"))
            loss = engine.forward_backward(batch, noise, True)["loss"]
            norm = float(engine.step(number, 1e-3))
            moments = {
                name: values.clone()
                for (field, name, _), values in engine.state()
                if field == "exp_avg"
            }
            found.append(Measured(float(loss), norm, moments))
            with engine.evaluating():
                module.forward("loss", batch, noise)
        engine.close()
    exempt_imports()
    return found


def graphs(monkeypatch, experiment, sizes):
    """Graphs that steps of these sizes take. No kernels are made of them: a graph is one whatever
    comes of it.
    """
    compiling = torch.compile
    with monkeypatch.context() as patched:
        patched.setattr(
            torch,
            "compile",
            lambda each, dynamic, options: compiling(each, dynamic=dynamic, backend="eager"),
        )
        torch._dynamo.reset()
        counters.clear()
        steps(experiment, sizes)
    assert not counters["graph_break"], counters["graph_break"]
    return counters["stats"]["unique_graphs"]


OPTIONS = (
    {"activation_checkpointing": True},
    {"activation_offload": "cpu"},
    {"activation_checkpointing": True, "activation_offload": "cpu"},
    {"zero": {"stage": 3}},
    {"zero": {"stage": 3}, "activation_checkpointing": True},
)
VARYING = [(16, 8), (32, 8), (16, 12), (18, 12), (16, 8)]
"""Batch and length: halved and odd micro-batches, buckets; one size that comes again."""


@pytest.mark.skipif(
    missing_to_compile() is not None, reason="no C++ compiler, or no headers of Python"
)
def test_one_graph_a_block_kind_whatever_the_sizes(monkeypatch):
    assert graphs(monkeypatch, small("digits/dit", compile=True), VARYING) == 1


@pytest.mark.slow
def test_one_graph_a_block_kind_of_every_family_and_stage(monkeypatch):
    # of pixelhdm one more than kinds: the first pixel block's input is a view
    kinds = {"digits/unet": 2, "pixelhdm/small": 3, "region/small": 2, "dlm/small": 1}
    for name, expected in kinds.items():
        assert graphs(monkeypatch, small(name, compile=True), VARYING) == expected, name
    # torch chooses a CPU's convolutions by whether a batch has 16 samples: of unet a graph for
    # either
    assert graphs(monkeypatch, small("digits/unet", compile=True), [*VARYING, (8, 8), (2, 8)]) == 4
    for options in ({"zero": {"stage": 0}}, {"zero": {"stage": 2}}, *OPTIONS):
        assert graphs(monkeypatch, small("digits/dit", compile=True, **options), VARYING) == 1, (
            options
        )


def test_eager_runs_have_no_graph(monkeypatch):
    assert graphs(monkeypatch, small("digits/dit"), VARYING[:1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_compiled_steps_give_the_eager_numbers(name):
    """Over five updates: losses within 1e-4 and the gradient's norm within 1e-3 of the eager ones,
    relatively.

    Of each parameter, the distance of the two first moments over the eager one's length (or over a
    thousandth of the longest where that is more): within 1e-4 for the first gradient, from equal
    weights, and within 5e-3 after updates.
    """
    eager, compiled = (steps(small(name, compile=compile), VARYING) for compile in (False, True))
    for number, (found, expected) in enumerate(zip(compiled, eager, strict=True)):
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)
        assert found.norm == pytest.approx(expected.norm, rel=1e-3)
        longest = max(float(moment.norm()) for moment in expected.moments.values())
        for key, moment in expected.moments.items():
            distance = float((found.moments[key] - moment).norm()) / max(
                float(moment.norm()), 1e-3 * longest
            )
            assert distance <= (1e-4 if number == 0 else 5e-3), (number, key)


def test_the_gradient_of_a_weight_is_the_product_whichever_operand_is_copied():
    import ditlab.engine.compilation  # noqa: F401  # defines the operator

    for outputs, inputs, rows in ((24, 8, 64), (8, 24, 64), (24, 8, 2)):
        left, x = torch.randn(rows, outputs).t(), torch.randn(rows, inputs)
        found = torch.ops.ditlab.weight_gradient(left, x)
        torch.testing.assert_close(found, left @ x)
        assert found.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_compiled_blocks_draw_the_eager_samples(name):
    """Within 1e-3, or with 1% of other tokens; once compiled blocks are left, samples have the
    eager bits again.
    """
    from ditlab.engine.compilation import compiled_blocks

    experiment, cpu = small(name), torch.device("cpu")
    family, sampling = experiment.family, experiment.sampling
    torch.manual_seed(0)
    network = family.build_network(experiment.model).eval()
    for parameter in network.parameters():  # most heads begin at 0
        torch.nn.init.normal_(parameter, std=0.05)
    changes = {"steps": 6} if hasattr(sampling, "steps") else {}
    sampler = family.build_sampler(
        sampling.model_copy(update=changes), experiment.model, experiment.objective
    )
    rows = (
        RealRows(batch_for(experiment, 4, 8), {}, {}, fixed_noise(0, cpu))
        if sampler.takes_rows != "none"
        else None
    )
    conditions = sampler.conditions(4, SampleRequest(rows=rows))

    def draw():
        return sampler.sample(network, conditions, 4, torch.Generator().manual_seed(0)).values

    eager = draw()
    with compiled_blocks(network, cpu):
        compiled = draw()
    assert torch.equal(draw(), eager) and eager.double().std() > 0.1
    if eager.is_floating_point():
        torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)
    else:
        assert (compiled != eager).double().mean() <= 0.01


@pytest.mark.slow
def test_options_change_no_number():
    """Recomputed and offloaded activations, and blocks gathered whole, run the same graphs."""
    plain = steps(small("digits/dit", compile=True), VARYING)
    for options in OPTIONS:
        found = steps(small("digits/dit", compile=True, **options), VARYING)
        assert [each.loss for each in found] == [each.loss for each in plain], options
        assert [each.norm for each in found] == pytest.approx(
            [each.norm for each in plain], rel=1e-6
        ), options


@pytest.mark.slow
def test_every_stage_and_two_workers_train_the_same_model():
    script = [Step([[Pass(0), Pass(1)], [Pass(2), Pass(3)]], number=number) for number in range(3)]
    jobs = []
    for compile, stage in ((False, 1), (True, 0), (True, 1), (True, 2), (True, 3)):
        engine = {"zero": {"stage": stage}, "compile": compile}
        jobs.append(Job(tiny(engine=engine, resources__workers=2), script))
    eager, *compiled = drive_workers(jobs, 2)
    for trace in compiled:
        assert trace.losses == pytest.approx(eager.losses, rel=1e-5)
        assert trace.norms == pytest.approx(eager.norms, rel=1e-4)


@pytest.mark.slow
def test_bf16_follows_eager():
    script = [Step([[Pass(0)]], number=number) for number in range(3)]
    for stage in (1, 3):
        experiment = tiny(engine__zero__stage=stage, training__precision="bf16")
        eager, compiled = (
            drive_here(Job(experiment.replace("engine.compile", compile), script))
            for compile in (False, True)
        )
        assert compiled.losses == pytest.approx(eager.losses, rel=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_a_compiled_run_resumes_bit_for_bit(tmp_path, stage):
    experiment = tiny(
        engine__zero__stage=stage, engine__compile=True, evaluation__every=2, evaluation__limit=40
    )
    train_here(experiment, tmp_path, tmp_path / "whole")
    train_here(experiment, tmp_path, tmp_path / "parts", stop_after=3)
    torch._dynamo.reset()  # as another process: its graphs come from the cache, or are made anew
    _, resumed = train_here(experiment, tmp_path, tmp_path / "parts")
    assert same_state(newest(tmp_path / "whole"), newest(tmp_path / "parts"))
    assert not resumed.warnings
    assert newest(tmp_path / "parts").manifest.blocks.startswith("compiled by torch")
    longer = tiny(engine__zero__stage=stage, training__steps=8)
    _, eager = train_here(longer, tmp_path, tmp_path / "parts")
    assert len(eager.warnings) == 1 and "and here they are eager" in eager.warnings[0]
