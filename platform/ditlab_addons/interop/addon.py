"""The command `weights`, formats of published weights and forms of exports, described without their
code.
"""

from ditlab.parts import Command, ExportFormat, Parts

ADDON = Parts(
    commands=(
        Command(
            name="weights",
            summary="Tell format and spec of published weights, to train from them.",
            target="ditlab_addons.interop.commands:weights",
            examples=(
                "ditlab weights inspect weights",
                "ditlab weights inspect hf://OWNER/NAME@REVISION --json",
            ),
            position=230,
        ),
    ),
    results="ditlab_addons.interop.commands:RESULTS",
    weight_formats={
        "diffusers_dit": "ditlab_addons.interop.formats.diffusers_dit:FORMAT",
        "dit": "ditlab_addons.interop.formats.dit:FORMAT",
        "get": "ditlab_addons.interop.formats.get:FORMAT",
        "sedd": "ditlab_addons.interop.formats.sedd:FORMAT",
        "sit": "ditlab_addons.interop.formats.dit:SIT",
    },
    export_formats=(
        ExportFormat(
            name="torch",
            help="torch: also a file of code that samples without DiTLab.",
            target="ditlab_addons.interop.self_contained_export:write_torch",
        ),
        ExportFormat(
            name="diffusers",
            help="diffusers: a pipeline of diffusers, of image families.",
            target="ditlab_addons.interop.self_contained_export:write_diffusers",
        ),
        ExportFormat(
            name="peft",
            help="peft: the adapters of training.lora alone, as peft writes them.",
            target="ditlab_addons.interop.adapter_export:write_peft",
            merges_adapters=False,
        ),
    ),
)
