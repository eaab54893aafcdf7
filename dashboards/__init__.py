"""What operators look at: Prometheus configuration, rules and dashboards, named from the metrics table."""
