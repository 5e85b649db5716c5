"""Tenure inside other programs. Each module needs the package that it is named after, and no other.

django/     a backend for `django.tasks`, a migration for the outbox, `manage.py tenure_worker`
airflow/    jobs as asset events, through Airflow's message queues
dagster     a store as a resource, runs from a queue's jobs
fastapi     the store's lifespan and dependencies, for FastAPI and Starlette
sentry      errors of tasks in Sentry, by a middleware
"""
