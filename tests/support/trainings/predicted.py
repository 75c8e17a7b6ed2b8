"""Memory of a worker on the CPU, as a plan predicts it."""

from ditlab.data.splits import open_data
from ditlab.home import Home
from ditlab.inputs.model_inputs import data_shape
from ditlab_addons.plan.frozen_encoders import EncoderWork
from ditlab_addons.plan.pass_memory import pass_memory
from ditlab_addons.plan.worker_memory import ParameterSizes, ZeroSetting, setting_memory


def predicted_memory(experiment, home):
    """Return the state between steps and the peaks of an experiment as it is, on the CPU."""
    shape = data_shape(experiment, open_data(experiment.data, Home(home)))
    zero = experiment.engine.zero
    setting = ZeroSetting(zero.stage, zero.offload, zero.offload_parameters)
    size = experiment.micro_size
    passes = pass_memory(experiment, shape, size, on_gpu=False)
    sizes = ParameterSizes.of_experiment(experiment, shape)
    return setting_memory(experiment, shape, setting, size, False, sizes, passes, EncoderWork())
