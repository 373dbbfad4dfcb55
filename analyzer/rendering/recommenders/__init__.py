"""A described recommender on GPUs: in words and sheets, and as records."""
