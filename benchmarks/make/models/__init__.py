"""Real architectures written out from their published configurations with plain torch.nn; nothing is downloaded.

Each module has `build()`, which returns the model on torch's default device, `make_batch(batch_size)`, which returns
its inputs (targets last), `predict(model, *batch)` and `compute_loss(model, *batch)`.
"""
