"""What runs inside the vLLM processes: hooks that write the page, patches that remove a stall."""
