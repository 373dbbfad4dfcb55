"""Which GPU to take: filters, totals, and how sure a rank is."""
