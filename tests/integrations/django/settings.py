"""The site's settings. DJANGO_STORE is the store's URL, DJANGO_DATABASE the SQLite file."""

import os

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["tenure.integrations.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DJANGO_DATABASE"],
        "TEST": {"NAME": os.environ["DJANGO_DATABASE"]},  # a file, so that the relay can open it
        "OPTIONS": {"timeout": 30},
    }
}
TASKS = {
    "default": {
        "BACKEND": "tenure.integrations.django.TenureBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"store": os.environ["DJANGO_STORE"], "max_attempts": 1},
    },
    "retrying": {
        "BACKEND": "tenure.integrations.django.TenureBackend",
        "QUEUES": ["retrying"],
        "OPTIONS": {"store": os.environ["DJANGO_STORE"], "max_attempts": 2, "on_commit": False},
    },
    "outbox": {
        "BACKEND": "tenure.integrations.django.TenureBackend",
        "QUEUES": ["outboxed"],
        "OPTIONS": {"store": os.environ["DJANGO_STORE"], "outbox": True},
    },
}
