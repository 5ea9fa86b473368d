"""Interpreted programs that wait for each other.

Triton's interpreter runs one program after another, so that one that waits for a later one waits
forever. Here each has a thread, of which one runs at a time; atomic operations pass the turn on.
"""

import inspect
import threading
from functools import partial

from triton.runtime.interpreter import GridExecutor, interpreter_builder


class Together:
    """An interpreted kernel whose programs, in a grid of one dimension, take turns."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return partial(self._launch, grid)

    def _launch(self, grid, *arguments, **options):
        function = self.kernel.rewrite()
        executor = GridExecutor(function, self.kernel.arg_names, (1,))

        def run(**args):
            Turns(grid[0], partial(function, **args)).run()

        run.__signature__ = inspect.signature(function)
        executor.fn = run
        executor(*arguments, **options)


class Turns:
    """Programs in threads, the first of which is at turn until it waits or ends."""

    def __init__(self, programs, program):
        self.program, self.going = program, list(range(programs))
        self.turn, self.change, self.failure = 0, threading.Condition(), None

    def run(self):
        builder, atomic = interpreter_builder, interpreter_builder.create_atomic_rmw

        def and_pass_on(*arguments):
            result = atomic(*arguments)
            self._pass_on()
            return result

        builder.set_grid_dim(len(self.going), 1, 1)
        builder.create_atomic_rmw = and_pass_on
        try:
            threads = [threading.Thread(target=self._one, args=(each,)) for each in self.going]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            del builder.create_atomic_rmw
        if self.failure is not None:
            raise self.failure

    def _one(self, number):
        try:
            self._await(number)
            self.program()
        except Exception as failure:
            self.failure = self.failure or failure
        with self.change:
            after = self._next(number)
            self.going.remove(number)
            self.turn = after
            self.change.notify_all()

    def _pass_on(self):
        number = self.turn
        with self.change:
            self.turn = self._next(number)
            self.change.notify_all()
        self._await(number)

    def _next(self, number):
        return self.going[(self.going.index(number) + 1) % len(self.going)]

    def _await(self, number):
        with self.change:
            self.change.wait_for(lambda: self.turn == number or self.failure)
        if self.failure is not None:
            raise RuntimeError("another program failed")
        interpreter_builder.set_grid_idx(number, 0, 0)
