"""Tenure inside other people's programs. Each module needs the package it is named after, and nothing here needs another.

django/     a backend for `django.tasks`, a migration for the outbox, `manage.py tenure_worker`
airflow/    jobs as asset events, by Airflow's message queues
dagster     a store as a resource, runs out of a queue's jobs
fastapi     the store's lifespan and dependencies, for FastAPI and Starlette
sentry      errors of tasks in Sentry, by a middleware
"""
