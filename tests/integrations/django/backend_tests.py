"""The backend, held against what Django's documentation asks of one, with its own test runner. Django 6, a real store."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks.base import Task
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from tenure import outbox
from tenure.integrations.django import TenureBackend
from tenure.model.retry import Backoff, Policy
from tenure.outbox import Relay

from . import tasks


@contextmanager
def worker(alias: str = "default"):
    with task_backends[alias].app.worker():
        yield


def finished(result: Any, seconds: float = 60) -> Any:
    """The result, once its task has ended."""
    queue, _, _ = result.id.rpartition(":")
    store = result.task.get_backend().app.store
    job = store.queue(queue).find(result.id)
    store.queue(queue).wait_for(job, timeout=seconds)
    result.refresh()
    return result


class TenureBackendTests(TransactionTestCase):
    def setUp(self) -> None:
        for alias in ("default", "retrying", "outbox"):
            backend = task_backends[alias]
            for name in backend.queues:
                backend.app.store.queue(name).configure(Policy(backoff=Backoff.fixed(0)))
                for state in ("ready", "scheduled", "done", "dead"):
                    backend.app.store.queue(name).purge(state)

    # ── enqueue ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_using_correct_backend(self):
        self.assertIsInstance(task_backends["default"], TenureBackend)
        self.assertEqual(default_task_backend, task_backends["default"])
        for name in ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority"):
            self.assertTrue(getattr(default_task_backend, name), name)

    def test_enqueue_and_execute(self):
        for task in (tasks.noop, tasks.anoop):
            with self.subTest(task), worker():
                result = task.enqueue(1, two=3)
                self.assertEqual((result.status, result.args, result.kwargs), (TaskResultStatus.READY, [1], {"two": 3}))
                self.assertFalse(result.is_finished)
                self.assertIsNone(result.started_at)
                self.assertEqual(result.task, task)
                finished(result)
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertIs(result.is_finished, True)
                self.assertIsNone(result.return_value)
                self.assertEqual(result.attempts, 1)
                self.assertEqual(result.errors, [])
                self.assertLessEqual(result.enqueued_at, result.started_at)
                self.assertLessEqual(result.last_attempted_at, result.finished_at)

    def test_return_values(self):
        with worker():
            self.assertEqual(finished(tasks.add.enqueue(2, b=3)).return_value, 5)
            self.assertEqual(finished(tasks.pair.enqueue()).return_value, [1, "two"])

    def test_async(self):
        async def run() -> Any:
            result = await tasks.add.aenqueue(20, 22)
            return result, await tasks.add.aget_result(result.id)

        result, again = async_to_sync(run)()
        self.assertEqual((again.id, again.status), (result.id, TaskResultStatus.READY))
        with worker():
            self.assertEqual(finished(again).return_value, 42)

    def test_failure(self):
        with worker():
            result = finished(tasks.fails.enqueue("busy: now"))
            self.assertEqual(result.status, TaskResultStatus.FAILED)
            (error,) = result.errors
            self.assertEqual(error.exception_class, tasks.MailError)
            self.assertIn("MailError: busy: now", error.traceback)
            self.assertIn("tasks.py", error.traceback)
            with self.assertRaisesMessage(ValueError, "Task failed"):
                result.return_value  # noqa: B018
            self.assertEqual(finished(tasks.fails_plainly.enqueue()).errors[0].exception_class, ValueError)
            unkept = finished(tasks.returns_an_object.enqueue())
            self.assertEqual((unkept.status, unkept.errors[0].exception_class), (TaskResultStatus.FAILED, TypeError))

    def test_context(self):
        with worker():
            result = finished(tasks.in_context.enqueue("hello"))
        self.assertEqual(result.return_value, ["hello", 1, result.id, "RUNNING", 1])

    def test_a_task_is_tried_again(self):
        result = tasks.second_time_lucky.enqueue()
        ended: list[str] = []
        heard = task_finished.connect(lambda task_result, **_: ended.append(task_result.status), weak=False)
        try:
            with worker("retrying"):
                finished(result)
        finally:
            task_finished.disconnect(heard)
        self.assertEqual((result.status, result.return_value, result.attempts), (TaskResultStatus.SUCCESSFUL, 2, 2))
        self.assertEqual(result.errors[0].exception_class, tasks.MailError)
        self.assertEqual(ended, [TaskResultStatus.SUCCESSFUL])

    def test_run_after(self):
        later = timezone.now() + timedelta(hours=1)
        result = tasks.noop.using(run_after=later).enqueue()
        (job,) = default_task_backend.app.store.queue("default").list("scheduled").jobs
        self.assertEqual(job.visible_at_ms // 1000, int(later.timestamp()))
        found = default_task_backend.get_result(result.id)
        self.assertEqual(found.status, TaskResultStatus.READY)
        self.assertEqual(int(found.task.run_after.timestamp()), int(later.timestamp()))

    def test_priority(self):
        ids = [tasks.add.using(priority=priority).enqueue(0, 0).id for priority in (0, 100, -100, 50)]
        queue = default_task_backend.app.store.queue("mail")
        found = [queue.ack(delivery) or (delivery.key, delivery.priority) for delivery in queue.claim(limit=4)]
        self.assertEqual(found, [(ids[1], 9), (ids[3], 6), (ids[0], 4), (ids[2], 0)])

    def test_validation(self):
        for wrong in ({"queue_name": "unknown"}, {"priority": 101}, {"run_after": timezone.now().replace(tzinfo=None)}):
            with self.subTest(wrong), self.assertRaises(InvalidTask):
                tasks.noop.using(**wrong)
        with self.assertRaises(InvalidTask):
            Task(func=lambda: None)

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_results_that_are_not_there(self):
        for unknown in ("123", "default:0", "no such!:1", ""):
            with self.subTest(unknown), self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(unknown)

    def test_a_result_of_another_task(self):
        result = tasks.noop.enqueue()
        with self.assertRaises(TaskResultMismatch):
            tasks.add.get_result(result.id)

    def test_a_running_task(self):
        result = tasks.noop.enqueue()
        default_task_backend.app.store.queue("default").claim(worker="w1")
        result.refresh()
        self.assertEqual((result.status, result.worker_ids), (TaskResultStatus.RUNNING, ["w1"]))

    def test_signals(self):
        seen: list[str] = []
        signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
        heard = {
            name: signal.connect(
                lambda task_result, name=name, **_: seen.append(f"{name} {task_result.status}"), weak=False
            )
            for name, signal in signals.items()
        }
        try:
            with worker():
                finished(tasks.noop.enqueue())
        finally:
            for name, signal in signals.items():
                signal.disconnect(heard[name])
        self.assertEqual(seen, ["enqueued READY", "started RUNNING", "finished SUCCESSFUL"])

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def test_enqueued_on_commit(self):
        store = default_task_backend.app.store
        with transaction.atomic():
            result = tasks.noop.enqueue()
            self.assertIsNone(result.enqueued_at)
            self.assertEqual(store.queue("default").counts().waiting, 0)
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(result.id)
        self.assertIsNotNone(result.enqueued_at)
        self.assertEqual(store.queue("default").counts().waiting, 1)
        self.assertEqual(default_task_backend.get_result(result.id).status, TaskResultStatus.READY)

    def test_nothing_is_enqueued_on_rollback(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.noop.enqueue()
            raise ZeroDivisionError
        self.assertEqual(default_task_backend.app.store.queue("default").counts().waiting, 0)

    def test_enqueued_at_once(self):
        with transaction.atomic():
            tasks.second_time_lucky.enqueue()
            self.assertEqual(task_backends["retrying"].app.store.queue("retrying").counts().waiting, 1)

    def test_outbox(self):
        """The migration made the table; the row commits with the transaction; the relay makes the job; the id finds it."""
        store = task_backends["outbox"].app.store
        with transaction.atomic():
            result = tasks.outboxed.enqueue("hello")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.outboxed.enqueue("never")
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["outbox"].get_result(result.id)
        table = outbox.connect(f"sqlite:{connection.settings_dict['NAME']}")
        self.assertEqual(table.waiting().rows, 1)
        self.assertEqual(Relay(table, store).drain().enqueued, 1)
        table.close()
        with worker("outbox"):
            self.assertEqual(finished(result).return_value, "HELLO")

    # ── settings, workers ────────────────────────────────────────────────────────────────────────────────────────────

    def test_an_unknown_option_is_named(self):
        settings = {"default": {"BACKEND": "tenure.integrations.django.TenureBackend", "OPTIONS": {"stor": "memory:"}}}
        with override_settings(TASKS=settings), self.assertRaisesMessage(ImproperlyConfigured, "stor"):
            task_backends["default"]

    def test_a_task_that_is_no_longer_there(self):
        with mock.patch.object(Task, "module_path", "tests.integrations.django.tasks.gone"):
            result = tasks.noop.enqueue()
        with worker():
            store = default_task_backend.app.store
            job = store.queue("default").wait_for(store.queue("default").find(result.id), timeout=60)
        self.assertEqual(job.state, "dead")
        self.assertIn("there is no task", job.error)

    def test_the_command_runs_a_worker(self):
        result = tasks.add.enqueue(40, 2)
        command = [sys.executable, "-m", "django", "tenure_worker", "--", "--concurrency", "1", "--pool", "process"]
        with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True) as running:
            try:
                self.assertEqual(finished(result).return_value, 42)
            finally:
                running.terminate()
            _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 0, said)

    def test_an_unknown_backend_is_named(self):
        command = [sys.executable, "-m", "django", "tenure_worker", "--backend", "nowhere"]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nowhere", done.stderr)
