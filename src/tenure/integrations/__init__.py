"""Tenure inside other people's programs. Each module needs the package it is named after, and nothing here needs another.

django/     a backend for `django.tasks`, a migration for the outbox, `manage.py tenure_worker`
fastapi     the store's lifespan and dependencies, for FastAPI and Starlette
sentry      errors of tasks in Sentry, by a middleware
"""
