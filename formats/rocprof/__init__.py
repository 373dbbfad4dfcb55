"""The importer of rocprofv3's output: JSON, CSV and its SQLite database (rocpd). See docs/reference/files.md."""

from .csv_files import read_csv
from .json_file import read_json

__all__ = ["read_csv", "read_json"]
