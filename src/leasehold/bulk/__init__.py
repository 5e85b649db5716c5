"""The keyspace as Arrow tables. Needs pyarrow and numpy (`pip install 'leasehold[spark]'`); nothing below imports it."""
