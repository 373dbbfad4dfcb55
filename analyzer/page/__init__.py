"""Tables, sentences and quantities, drawn for a terminal, as Markdown, HTML, JSON, CSV or SVG."""
