"""Checkpoints: their format, their stores, and a saver that writes them beside the step loop.

    step-00000200/
        shard-00000-of-00002-9f31c2ab.safetensors   one a worker: its pieces of master weights,
                                                    moments, average
        manifest.json                               written last: step, position, spec, location
                                                    of each piece, hash of each shard

A piece is `parameter[start:stop]` of the flattened parameter, so a checkpoint depends neither on
the number of workers nor on the ZeRO stage that wrote it. A checkpoint exists once its manifest
does. Nothing in it is ever unpickled.

`store.CheckpointStore` holds a run's checkpoints, local or behind a URI; `reader.CheckpointReader`
reads one of them; `saving.BackgroundSaver` writes them, in one thread of each worker.
"""
