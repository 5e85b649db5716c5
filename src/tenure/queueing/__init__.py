"""The queue, written once on the seam: each verb is one transaction of `core.Core.write`."""
