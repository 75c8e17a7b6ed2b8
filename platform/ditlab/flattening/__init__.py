"""One readable file from sources of several modules: only the definitions that one spec uses, with
the branches that it takes.
"""
