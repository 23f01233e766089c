"""A running deployment over HTTP: the service and its client.

Requests about a deployment enter; its state and its matches leave. A query from outside is tried out first.
"""
