"""What all questions take: prices, hosts, selection, machines, inputs and outputs; and how an answer is handed over."""
