"""The service of a running deployment over HTTP, and the other side of it.

Requests about a deployment enter; its state and its matches leave. A query from outside is tried out first.
"""
