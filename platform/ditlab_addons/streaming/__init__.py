"""Add-on: stores whose rows are fetched when they are needed, and the order by streams."""
