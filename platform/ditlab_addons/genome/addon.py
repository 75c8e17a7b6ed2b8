"""The importer `get`, described without its code."""

from ditlab.parts import Importer, Parts

ADDON = Parts(
    importers=(
        Importer(
            name="get",
            options="ditlab_addons.genome.options:GetOptions",
            target="ditlab_addons.genome.get_import:import_get",
            by_blocks=True,
            library="zarr",
        ),
    ),
)
