"""Labelled texts: files and data sets ► rows ► examples ► encoded batches of about equal length."""
