"""The service over HTTP, and the console.

Requests about a running deployment enter; its state and its matches leave. Empty so far.
"""
