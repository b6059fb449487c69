"""One page per finding and the `stallscope` CLI: the only room that joins the others."""
