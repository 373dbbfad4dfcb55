"""The commands, one thin module each: read, call the library, render. Importing one loads little beside click."""
