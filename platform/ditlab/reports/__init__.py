"""Figures, tables and pages; the only package that imports matplotlib."""

import os

from ditlab.home import Home

# matplotlib keeps a font cache in the user's home folder by default; it belongs under DITLAB_HOME.
os.environ.setdefault("MPLCONFIGDIR", str(Home.named_by_environment().caches / "matplotlib"))
