"""Components with one defect each, and benign variants."""
