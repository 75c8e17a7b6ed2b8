"""Examples at the end of each command's `--help`."""

import re

import click

# A command's own are those that name it. A test takes each apart as the command would, and loads the specs in it.
EXAMPLES = """
ditlab train experiments/digits/dit.yaml --local
ditlab train experiments/digits/dit.yaml --set training.steps=2500
ditlab train experiments/digits/dit.yaml --resume auto
ditlab train experiments/digits/dit.yaml --dry-run
ditlab tune experiments/digits/sweep_schedule.yaml --dry-run
ditlab tune experiments/digits/sweep_schedule.yaml --set trials=4
ditlab tune --resume 1a2b3c4d
ditlab submit experiments/digits/dit.yaml --resume auto
ditlab submit experiments/digits/sweep_schedule.yaml --no-wait
ditlab sample digits-dit --num 16
ditlab sample 1a2b3c4d --solver heun --steps 25 --seed 3 --out samples
ditlab sample mnist-class --label 7 --guidance 2
ditlab sample captions --prompt "a red circle" --size 32x48
ditlab evaluate digits-dit
ditlab evaluate 1a2b3c4d --quality 2000
ditlab evaluate 1a2b3c4d --quality 500 --set sampling.steps=10
ditlab evaluate 1a2b3c4d --ema 0.05,0.1,0.15,0.2,0.25
ditlab prove experiments/digits/dit.yaml
ditlab prove experiments/digits/dit.yaml --set engine.zero.stage=2
ditlab prove experiments/pixelhdm/base.yaml --json
ditlab replay digits-dit --step 400
ditlab replay 1a2b3c4d --step 1 --to 50 --check
ditlab replay 1a2b3c4d --worst 5 --out spikes
ditlab replay 1a2b3c4d --step 400 --set training.clip.max_norm=0.5
ditlab verify digits-dit
ditlab verify 1a2b3c4d --steps 10 --time 600 --seed 7
ditlab verify 1a2b3c4d --steps 0 --json
ditlab compare digits-dit digits-unet
ditlab compare 1a2b3c4d 5e6f7a8b --samples 0 --out comparison
ditlab report digits-dit
ditlab report 1a2b3c4d --out digits.html --log
ditlab watch digits-dit
ditlab watch 1a2b3c4d --port 0 --no-open
ditlab params experiments/digits/dit.yaml --shapes
ditlab params experiments/digits/dit.yaml --set model.depth=9
ditlab plan experiments/digits/dit.yaml --measure
ditlab plan experiments/pixelhdm/base.yaml --gpu H100 --gpus 8 --price 2.50
ditlab plan experiments/region/get.yaml --gpu L4 --apply smaller.yaml
ditlab profile experiments/digits/dit.yaml
ditlab profile experiments/digits/unet.yaml --steps 5 --out profile
ditlab figures --list
ditlab figures digits-dit --kind loss --out figures
ditlab validate experiments/digits/dit.yaml
ditlab validate experiments/digits/*.yaml
ditlab show experiments/digits/dit.yaml --set model.depth=9
ditlab show experiments/digits/sweep_schedule.yaml > resolved.yaml
ditlab schema --out experiment.schema.json
ditlab schema --sweep
ditlab data import mnist
ditlab data inspect mnist-train
ditlab data upload mnist-train s3://BUCKET/stores/mnist-train
ditlab data import text --source book.txt
ditlab data import digits
ditlab data import mnist --source idx --no-checksum
ditlab data import images --source photos
ditlab data import images --source 's3://BUCKET/web/*.tar' --address auto
ditlab data import text --source book.txt --length 256
ditlab data import text --source book.txt --tokenizer bpe --name book
ditlab data import get --source pbmc.zarr --regions 200
ditlab data import get --source s3://BUCKET/pbmc.zarr --cell-type cd4
ditlab data encode images-photos-256 --encode-text Qwen/Qwen3-0.6B
ditlab data inspect mnist-train --num 64
ditlab data inspect s3://BUCKET/stores/mnist-train --json
ditlab export digits-dit --out weights
ditlab export 1a2b3c4d --out weights --raw
ditlab runs --num 50
ditlab runs show digits-dit
ditlab runs --tracking http://127.0.0.1:5000
ditlab runs log 1a2b3c4d
ditlab runs rm 1a2b3c4d --dry-run
ditlab runs sync
ditlab runs sync 1a2b3c4d --tracking http://127.0.0.1:5000
ditlab ui
ditlab ui --port 5001 --wait 600
ditlab ui --host 0.0.0.0 --auth --allowed-hosts mlflow.example.org
ditlab doctor
ditlab doctor --cluster --address 10.0.0.5:6379
ditlab doctor --cluster --storage s3://BUCKET/checkpoints
eval "$(ditlab completion bash)"
ditlab completion fish > ~/.config/fish/completions/ditlab.fish
""".strip().split("\n")


def examples_of(name: str) -> list[str]:
    """Return the examples of a command, and of those below it."""
    return [line for line in EXAMPLES if re.search(rf"(^|\()ditlab {name}( |\)|$)", line)]


def with_examples(command: click.Command, name: str) -> click.Command:
    """Put the examples of a command, and of the commands below it, at the end of their help; `name` may have words."""
    if lines := examples_of(name):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            with_examples(each, f"{name} {below}")
    return command
