"""The command `data` and DiTLab's own importers, described without their code."""

from ditlab.parts import Command, Importer, Parts

PARTS = Parts(
    commands=(
        Command(
            name="data",
            summary="Import data into Arrow stores; inspect, encode and upload them.",
            target="ditlab.cli.data.commands:data",
            examples=(
                "ditlab data import mnist",
                "ditlab data inspect mnist-train",
                "ditlab data upload mnist-train s3://BUCKET/stores/mnist-train",
                "ditlab data import text --source book.txt",
                "ditlab data import digits",
                "ditlab data import mnist --source idx --no-checksum",
                "ditlab data import images --source photos",
                "ditlab data import images --source photos --dry-run",
                "ditlab data import images --source 's3://BUCKET/web/*.tar' --address auto",
                "ditlab data import text --source book.txt --length 256",
                "ditlab data import text --source book.txt --tokenizer bpe --name book",
                "ditlab data import get --source pbmc.zarr --regions 200",
                "ditlab data import get --source s3://BUCKET/pbmc.zarr --cell-type cd4",
                "ditlab data list",
                "ditlab data rm images-photos-256",
                "ditlab data statistics photos --weights inception.pth --sha256 $SHA256",
                "ditlab data encode images-photos-256 --encode-text Qwen/Qwen3-0.6B",
                "ditlab data inspect mnist-train --num 64",
                "ditlab data inspect s3://BUCKET/stores/mnist-train --json",
            ),
            position=210,
        ),
    ),
    results="ditlab.cli.data.results:RESULTS",
    importers=(
        Importer(
            name="digits",
            options="ditlab.spec.importing:DigitsOptions",
            target="ditlab.data.builtin:import_digits",
            is_fixed=True,
        ),
        Importer(
            name="images",
            options="ditlab.spec.importing:ImagesOptions",
            target="ditlab.data.images.image_import:import_images",
            by_blocks=True,
            has_dry_run=True,
        ),
        Importer(
            name="mnist",
            options="ditlab.spec.importing:MnistOptions",
            target="ditlab.data.mnist:import_mnist",
        ),
        Importer(
            name="text",
            options="ditlab.spec.importing:TextOptions",
            target="ditlab.data.text.text_import:import_text",
            by_blocks=True,
            has_dry_run=True,
        ),
    ),
)
