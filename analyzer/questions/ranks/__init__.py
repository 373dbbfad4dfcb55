"""Several ranks of one job: who waits for whom, and the job on other GPUs."""
