"""Several runs side by side: records in, figures and a page out."""
