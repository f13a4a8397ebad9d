"""What streams ask of their entries: schemas, lenses, profiles, search configs, filters. Pure.

A stream keeps its rules as the JSON they came as (`state/rules.py`); this room knows what they
mean. Nothing in it does I/O, asks for the time or knows the engine: a request comes in as bytes,
and what would become of the rules comes out as a value (`registry.plan_update`,
`profiles.plan_profile`), which the API turns into a command.

    documents.py     JSON of people: decoded within limits, pointers into it
    dialect.py       JSON Schema as we take it: which keywords count, what one costs
    validation.py    whether an entry keeps to a schema, and what is wrong with it
    lenses.py        documents that lead from one version to the next, and how they do it
    transforms.py    what `convert` does to a single value
    proofs.py        that a lens leads from one schema to another, before it is taken
    fitting.py       whether all that keeps to one schema keeps to another
    registry.py      what a schema update would change, and the registry as it is shown
    promotion.py     entries of old versions in the shape of the current one
    search_config.py which fields can be searched, and how
    values.py        what a field's value is, in the one form that queries compare
    words.py, filters.py  the query language, and filters in it
    profiles/        kinds of streams with entries of a known shape: evlog, metrics, state-protocol
    touch_settings.py  how changes of a state-protocol stream are told
    weighed_cache.py what was parsed or compiled, kept within a bound

Rules come from people and are hostile until checked: whatever is wrong with them is an
`InvalidSchema` that names the place, and what is taken has bounded cost (`limits.py`).
"""
