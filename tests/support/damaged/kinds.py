"""Every kind of file that a home holds, with the case that damages it, or the reason why none
does.
"""

import re
from collections.abc import Iterator
from pathlib import Path

CHECKPOINT = r"train/\w+/checkpoints/step-\d+/"
SNAPSHOT = r"train/\w+/checkpoints/averages/step-\d+/"
STORE = r"(stores/[^/]+|caches/stores/[^/]+)/"

DAMAGED = (
    (r"train/\w+/journal\.jsonl", "journal"),
    (r"train/\w+/journal\.node-\d+\.jsonl", "journal of node 1"),
    (r"train/\w+/journal(\.node-\d+)?\.cursor\.json", "cursor"),
    (r"train/\w+/run\.json", "run.json"),
    (r"train/\w+/spec\.yaml", "spec.yaml"),
    (r"train/\w+/tokenizer\.json", "tokenizer.json"),
    (r"train/\w+/trials\.jsonl", "trials.jsonl"),
    (r"train/\w+/exploits\.jsonl", "exploits.jsonl"),
    (r"train/\w+/elapsed\.json", "elapsed.json"),
    (r"train/\w+/sweep\.yaml", "sweep.yaml"),
    (r"train/\w+/report/best\.yaml", "best.yaml"),
    (r"train/\w+/(media|report)/.*\.png", "picture"),
    (CHECKPOINT + r"manifest\.json", "checkpoint's manifest"),
    (CHECKPOINT + r"shard-[^/]*", "checkpoint's shard"),
    (SNAPSHOT + r"manifest\.json", "snapshot's manifest"),
    (SNAPSHOT + r"shard-[^/]*", "snapshot's shard"),
    (r"stores/[\w.-]+", "name of a store"),
    (STORE + r"buckets\.json", "buckets.json"),
    (STORE + r"\d+x\d+-\w+/store\.json", "bucket's store.json"),
    (STORE + r"store\.json", "store.json"),
    (STORE + r"(\d+x\d+-\w+/)?[\w-]+\.arrow", "store's rows"),
    (STORE + r"(\d+x\d+-\w+/)?blocks-\w+\.bin", "store's index"),
    (STORE + r"tokenizer\.json", "tokenizer.json"),
    (r"(export|exports/\w+|train/\w+/media/export)/weights\.safetensors", "export's weights"),
    (r"(export|exports/\w+|train/\w+/media/export)/spec\.yaml", "export's spec.yaml"),
    (r"tokenizer\.json", "tokenizer.json"),
    (r"classifiers/[^/]+\.safetensors", "classifier"),
    (r"home\.json", "home.json"),
    (r"mlflow\.db", "mlflow.db"),
)
"""(Pattern of paths below the home, name of the case)."""

NOT_READ = (
    # a fork's mark: another content than the checkpoint's hash is tried in runs/forks
    CHECKPOINT + r"fork-\w+",
    # receipts: tests of receipts and check/verify damage them
    r"train/\w+/receipts/(steps\.bin|attempts\.jsonl|spec-[0-9a-f]{16}\.yaml)",
    # the spec before a resume: check/verify/test_resumed_runs alters it
    r"train/\w+/receipts/spec-\w+\.yaml",
    # values by held-out sample: training/test_evaluation cuts one short
    r"train/\w+/evaluations/\d+\.safetensors",
    # made again where it is damaged: ditlab_addons/query/test_query
    r"train/\w+/journal\.parquet",
    # for people, sent to MLflow as it is
    r"train/\w+/proof\.(json|txt)",
    # a lock: what it holds is not read
    r".*\.lock",
    # MLflow's copies, which only its server reads
    r"(.*/)?artifacts/.*",
    # for people, sent to MLflow as it is
    r"train/\w+/(report|figures|media)/.*\.(html|md|svg|pdf|gif|txt|csv)",
    # a table or the machine's facts, sent to MLflow as they are
    r"train/\w+/media/.*\.json",
    # for people
    r"train/\w+/(report\.html|samples/.*|figures/.*)",
    # a table for people
    r"train/\w+/media/.*\.parquet",
    # for people
    r"comparisons/.*",
    # made again where it is damaged: tracking/journal/test_device_hours
    r"caches/device_hours\.json",
    # verified, or made again, when it is loaded: tests of quality
    r"caches/features/.*",
    # of streamed stores, verified when it is loaded: tests of the add-on streaming
    r"caches/(blocks|streamed)/.*",
    # may be deleted at any time
    r"caches/(inspect|matplotlib|compiled-\d+)/.*",
    # the MLflow server's own: test_locks_and_keys, its tests
    r"mlflow-(server-\d+\.log|key|users\.db|access\.ini)",
    # put aside, and not read again
    r"(mlflow\.db|artifacts)\.before-[\d-]+.*|.*\.damaged",
)
"""Patterns of files of which no damage is tried, each below the reason."""


def unknown_files(root: Path) -> Iterator[str]:
    """Files below a home of which neither table says anything."""
    known = re.compile("|".join([*(pattern for pattern, _ in DAMAGED), *NOT_READ]))
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not known.fullmatch(name):
            yield name
