"""What bench/report is made of: results (reading), table, charts, page (writing), compare."""
