"""What a rank communicates: one table of torch's operations, one record for each that it issues."""
