"""DiTLab's models: networks, noising processes and samplers for diffusion models. Needs torch,
NumPy and pydantic, and SciPy for intervals of evaluations.

A family is a folder `ditlab_models/NAME/` whose `family.py` defines `FAMILY` (see
`ditlab_models.contract.Family`). Folders named `ditlab_models` anywhere on the Python path are
searched, so a family can be outside this source tree.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
