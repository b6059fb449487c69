"""Whether a cache tier pays off, and what its queue does: the model behind `stallscope size`."""
