"""The incremental operators: compiled per query, over columns, with state that can be saved and restored.

A plan and batches of events in order enter; matches and a state leave. Empty so far: `reference` does
the work, slowly.
"""
