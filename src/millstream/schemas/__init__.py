"""What a stream asks of its entries: schemas, lenses, profiles, search configs and filters.

Pure: no I/O, no clock, no engine. `state.rules.Rules` keeps the documents, this room reads them.
"""
