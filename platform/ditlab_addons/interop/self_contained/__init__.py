"""Code that an exported folder carries: a network and its sampler without DiTLab, alone or as parts
of diffusers.

`module`, `diffusers_network` and `pipeline` are written into folders as they stand; `code` puts
them together.
"""
