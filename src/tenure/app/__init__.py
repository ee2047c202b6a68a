"""The composition root: `Tenure`, what opens stores and notifiers by URL, and the two kinds of process."""
