"""Add-ons: features that DiTLab's core does without, a folder each.

An add-on is a folder `ditlab_addons/NAME/` whose `addon.py` defines `ADDON` (see `ditlab.parts`).
Folders named `ditlab_addons` anywhere on the Python path are searched. The core imports no add-on,
and no add-on another.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
