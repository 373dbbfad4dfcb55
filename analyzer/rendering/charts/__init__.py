"""The charts of reports whose words are one module beside this package."""
