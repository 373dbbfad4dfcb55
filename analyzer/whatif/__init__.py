"""What-ifs: the same iteration in another precision, of other sizes, or launched otherwise: functions of the trace."""
