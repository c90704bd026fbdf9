"""One file per trainer: the function, class or wrapper that the trainer lets in, as `docs/trainers` tells.

Hooks never raise into the trainer, import its library nowhere, and read its objects by attribute.
"""
