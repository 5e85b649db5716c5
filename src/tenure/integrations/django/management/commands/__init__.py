"""`manage.py` finds its commands here."""
