"""Apache Airflow 3: a queue whose jobs start Dags, through Airflow's message queues.

    MessageQueueTrigger(scheme="tenure", store="http://queue:8400", queue_name="reports")

`messages` has the trigger. Airflow reads this module when it searches for providers; it imports nothing of Airflow's.
"""

from __future__ import annotations


def provider_info() -> dict[str, object]:
    """Return the provider's description for Airflow's ProvidersManager (entry point `apache_airflow_provider`)."""
    return {
        "package-name": "tenure",
        "name": "Tenure",
        "description": "Jobs of a Tenure queue as events that start Dags.",
        "queues": ["tenure.integrations.airflow.messages.TenureMessages"],
    }
