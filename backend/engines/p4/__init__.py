"""p4 on one host: our agent asks the p4 agent that lives there. It starts none of its processes and ends none."""
