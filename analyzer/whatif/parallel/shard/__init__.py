"""What one rank runs of tensors, tokens and experts that ranks share.

One kind of sharing at a time is followed through all ops (`walk.py`): experts, then tokens (context parallelism), then
features, with tokens between them. A storage is whole, a part, or a summand (`placement.py`); letters say which dims of
an op's tensors are one (`naming.py`), and from these follows what a rank must hold of the inputs and gets of the
results (`decide.py`). Where it holds something else, a collective is inserted before the op that needs it
(`exchange.py`), once per tensor. Which weights are shared is found by following their products (`roles.py`).

As torch's parallelize_module and Megatron-LM do it: gathered activations are kept for the backward pass; a shared
vocabulary costs three exchanges of a number per token; norms' gradients are added up before the optimizer. Context
parallelism gathers keys and values before attention and again in its backward pass, the causal triangle balanced among
ranks; a ring that hides behind attention is not told apart. Experts' rows are taken to be spread evenly.
"""
