"""Previews of rows, the same for both table formats: conditions, order and selection, evaluated by Arrow."""
