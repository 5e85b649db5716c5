"""The queue's verbs, written once above the engine interface. Each is one transaction of `core.Core.write`."""
