"""Methods of Iceberg that are not public, and the files that a job must leave out."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import Failed

LEFT_OUT_FILES = "monodon.left-out-files"
"""The property with which the catalog names the files of a table that a job must not open."""


class Internals:
    """Methods of Iceberg's actions that are not public, called by reflection.

    An action plans its groups of files and rewrites them in one call. Here, files are removed from the groups
    in between.
    """

    def __init__(self, jvm: Any, gateway: Any) -> None:
        self._jvm, self._gateway = jvm, gateway

    def call(self, target: Any, name: str, *arguments: Any) -> Any:
        """Call a method by its name and the number of its arguments. Raises Failed if there is none."""
        for method in self._members(target, "getDeclaredMethods"):
            if (
                method.getName() == name
                and method.getParameterCount() == len(arguments)
                and not method.isBridge()
            ):
                method.setAccessible(True)
                return method.invoke(target, self._array(arguments))
        raise _unsupported_release(name)

    def field(self, target: Any, name: str) -> Any:
        return self._field(target, name).get(target)

    def set_field(self, target: Any, name: str, value: Any) -> None:
        self._field(target, name).set(target, value)

    def construct(self, name: str, *arguments: Any) -> Any:
        """An object of a class that has a single constructor."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self._construct(loader.loadClass(name), arguments)

    def without(
        self, planner: Any, files: frozenset[str], group: str, *, is_all: bool
    ) -> tuple[Any, int]:
        """A plan without these files and those that they apply to, and the number of files left out.

        ``group`` is the class of the groups. A group that has lost files remains if the planner would still
        rewrite it.
        """
        plan = planner.plan()
        groups = self._jvm.java.util.ArrayList()
        count = 0
        for planned in iterate(plan.groups()):
            tasks = self._jvm.java.util.ArrayList()
            for task in iterate(planned.fileScanTasks()):
                if files.isdisjoint(_paths_of(task, with_deletes=group == "RewriteFileGroup")):
                    tasks.add(task)
            removed = planned.inputFileNum() - tasks.size()
            count += removed
            if not removed:
                groups.add(planned)
            elif not tasks.isEmpty() and (is_all or self._is_worthwhile(planner, tasks)):
                groups.add(self._group(planner, planned, tasks, group))
        sizes = self.field(plan, "groupsInPartition")
        iterable = self._jvm.org.apache.iceberg.io.CloseableIterable.withNoopClose(groups)
        return self._construct(plan.getClass(), (iterable, groups.size(), sizes)), count

    def _is_worthwhile(self, planner: Any, tasks: Any) -> bool:
        groups = self._jvm.java.util.ArrayList()
        groups.add(tasks)
        return bool(self.call(planner, "filterFileGroups", groups).iterator().hasNext())

    def _group(self, planner: Any, planned: Any, tasks: Any, name: str) -> Any:
        size = self.call(planner, "inputSize", tasks)
        limits = (
            planned.maxOutputFileSize(),
            self.call(planner, "inputSplitSize", size),
            self.call(planner, "expectedOutputFiles", size),
        )
        make = getattr(self._jvm.org.apache.iceberg.actions, name)
        if name == "RewriteFileGroup":
            return make(planned.info(), tasks, planned.outputSpecId(), *limits)
        return make(planned.info(), tasks, *limits)

    def _field(self, target: Any, name: str) -> Any:
        for field in self._members(target, "getDeclaredFields"):
            if field.getName() == name:
                field.setAccessible(True)
                return field
        raise _unsupported_release(name)

    def _members(self, target: Any, kind: str) -> Iterator[Any]:
        class_ = target.getClass()
        while class_ is not None:
            yield from getattr(class_, kind)()
            class_ = class_.getSuperclass()

    def _construct(self, class_: Any, arguments: Sequence[Any]) -> Any:
        (constructor,) = class_.getDeclaredConstructors()
        constructor.setAccessible(True)
        return constructor.newInstance(self._array(arguments))

    def _array(self, values: Sequence[Any]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for number, value in enumerate(values):
            array[number] = value
        return array


def _unsupported_release(name: str) -> Failed:
    return Failed(
        "refused",
        f"Files of other tables cannot be left out with this release of Iceberg: it has no '{name}'",
    )


def left_out_files(table: Any) -> frozenset[str]:
    """The files that a job must not open, as the catalog named them with this state of the table."""
    text = table.properties().get(LEFT_OUT_FILES)
    return frozenset(json.loads(text)) if text else frozenset()


def _paths_of(task: Any, *, with_deletes: bool) -> set[str]:
    """The paths of the files that a task reads: a data file with its delete files, or a delete file."""
    files = [task.file(), *(iterate(task.deletes()) if with_deletes else ())]
    return {str(file.location()) for file in files}


def iterate(iterable: Any) -> Iterator[Any]:
    """The elements of an iterable of Java."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()
