"""What a trace is: its tables, their form as JSON, the schema, and the checks that every trace passes."""
