"""Health checks: what was gathered on a node (``looking``) gives findings and actions (``checking``)."""
