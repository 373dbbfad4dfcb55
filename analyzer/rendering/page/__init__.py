"""Tables, sentences and quantities, drawn for a terminal, as Markdown, JSON, CSV or SVG."""
