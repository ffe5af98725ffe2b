"""report.html: one self-contained page, plain HTML and CSS, no script and nothing fetched."""
