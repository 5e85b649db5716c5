"""Apache Airflow 3: a queue whose jobs start Dags, through Airflow's message queues.

    MessageQueueTrigger(scheme="tenure", store="http://queue:8400", queue_name="reports")

`messages` has the trigger. This module is what Airflow reads when it looks for providers, and imports nothing of Airflow's.
"""

from __future__ import annotations


def provider_info() -> dict[str, object]:
    """What Airflow's ProvidersManager asks of a package: its entry point is `apache_airflow_provider`."""
    return {
        "package-name": "tenure",
        "name": "Tenure",
        "description": "Jobs of a Tenure queue as events that start Dags.",
        "queues": ["tenure.integrations.airflow.messages.TenureMessages"],
    }
