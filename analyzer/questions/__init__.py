"""One folder per question: its command, its Python function, what it computes, its report, its page and charts."""
