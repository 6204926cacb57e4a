"""From predictions to metrics, tables, figures and the report."""
