"""The algebra: what a query means, as small immutable nodes.

Queries as written (`chi`, `sparql`) enter; `resolve` and `program` turn them into plans (`nodes`)
against a `catalog` of streams; hosts run the plans on `events`. This room imports no other.
"""
