"""Where files are kept: what somebody writes as a place comes in, a path that there can be goes out."""
