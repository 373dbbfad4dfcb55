"""FLOPs and compulsory bytes of ops: one registered formula per op."""
