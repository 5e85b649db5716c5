"""The shop's settings. SHOP_FOLDER is where its database and its queue are."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
SECRET_KEY = "only for this example"
USE_TZ = True
INSTALLED_APPS = ["tenure.integrations.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(FOLDER / "shop.db")}}
TASKS = {
    "default": {
        "BACKEND": "tenure.integrations.django.TenureBackend",
        "QUEUES": ["mail"],
        "OPTIONS": {"store": f"rocksdb:{FOLDER / 'queue'}", "outbox": True},
    }
}
