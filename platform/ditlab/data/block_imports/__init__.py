"""Imports by blocks: input in numbered blocks, each made into shards by one pure function, the manifest written last.

An importer of this kind has

- a plan (`plan.ImportPlan`): its source as numbered, fixed `InputBlock`s, and a fingerprint of source and options;
- rules (`runner.BlockRules`): a frozen dataclass that can be pickled, whose `convert(block, folder)` reads a block,
  writes its shards into `folder` (`stores.writer.write_shards`, with `block.prefix`), and returns a `BlockReceipt`;
- an end: `runner.run_blocks(plan, rules, folder, executor, progress)` returns the receipts of all blocks in order, and
  the importer writes the manifest of their shards.

    plan = ImportPlan.of("images", blocks, options={"resolution": 256})
    folder = plan.folder(request.out / name)
    receipts = run_blocks(plan, rules, folder, request.executor, request.progress)

What is in `folder` when it begins, from the same plan, is taken over: blocks whose receipt is whole and whose shards
are there are not read again. `executor` runs blocks in processes of this machine, or on Ray (`cluster/imports`); the
result depends on neither, nor on kills. `source_files` lists files by folder, glob pattern and URI, and opens
one for reading.
"""
