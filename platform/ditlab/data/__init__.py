"""Data: importers, Arrow stores, the resumable order of samples, the loader.

`sources.open_data` turns a spec's `data` into views of stores; `sampler.SampleOrder` says which rows a step takes;
`loader.Loader` fetches them ahead of the step; `fields.to_device` hands them to a model in the range that it wants.
Images of several sizes lie in a bucketed store (`buckets`, `bucketed_store`), whose batches are of one size each.
"""
