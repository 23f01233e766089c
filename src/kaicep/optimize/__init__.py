"""Rewrites of plans: one file for each, a plain function from plan to plan, in one ordered tuple.

A resolved plan enters; a plan with the same answer leaves, with the knowledge compiled out of it as far
as that goes. Empty so far: plans run as they were resolved.
"""
