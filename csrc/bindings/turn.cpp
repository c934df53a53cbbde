// kernelbench_dist._C.Turn: a thread's turn to run, and a fast way to hand it on.
//
//   turn.give()            the thread that waits for it, or the next to do so, goes on
//   turn.wait()            until it is given
//   turn.swap(following)   following.give() and turn.wait(), in one step without the GIL
//
// What it does about the two costs of a hand-over between Python threads:
//
// With a lock of Python's, the thread that is woken finds the GIL still held, and goes to sleep
// again until the other has gone to sleep. Here the GIL is free before the other wakes.
//
// The kernel wakes a thread on an idle core if there is one, and to wake that core takes longer
// than a small collective. So `swap` binds the thread that it wakes to its own core, which it is
// about to leave; and once that thread runs, it takes back the cores that were its own.
#include "bindings/turn.h"

#ifdef __linux__

#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

namespace kernelbench_dist {
namespace {

struct Turn {
  PyObject head;  // what PyObject_HEAD declares
  sem_t given;
  cpu_set_t cores;             // those of the thread that waits
  std::atomic<pid_t> waiting;  // the thread, once `cores` are known; 0: none that can be bound
  std::atomic<bool> bound;     // to one core, by who gave the turn
};

void bind(Turn& turn) {
  const pid_t thread = turn.waiting.load();
  const int core = sched_getcpu();
  if (thread == 0 || core < 0 || core >= CPU_SETSIZE) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(thread, sizeof one, &one) == 0) turn.bound = true;
}

// The program may have changed the thread's cores since the last time, so they are asked for.
void await(Turn& turn) {
  const bool known = sched_getaffinity(0, sizeof turn.cores, &turn.cores) == 0;
  turn.waiting = known ? static_cast<pid_t>(syscall(SYS_gettid)) : 0;  // older glibc has no gettid
  while (sem_wait(&turn.given) != 0 && errno == EINTR) {
  }
  turn.waiting = 0;
  if (turn.bound.exchange(false)) sched_setaffinity(0, sizeof turn.cores, &turn.cores);
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Turn*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  new (&self->waiting) std::atomic<pid_t>(0);
  new (&self->bound) std::atomic<bool>(false);
  sem_init(&self->given, 0, 0);
  return reinterpret_cast<PyObject*>(self);
}

void destroy(PyObject* self) {
  sem_destroy(&reinterpret_cast<Turn*>(self)->given);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* give(PyObject* self, PyObject*) {
  sem_post(&reinterpret_cast<Turn*>(self)->given);
  Py_RETURN_NONE;
}

PyObject* wait(PyObject* self, PyObject*) {
  auto* own = reinterpret_cast<Turn*>(self);
  Py_BEGIN_ALLOW_THREADS;
  await(*own);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* swap(PyObject* self, PyObject* other) {
  if (!Py_IS_TYPE(other, Py_TYPE(self))) {
    return PyErr_Format(PyExc_TypeError, "swap takes a Turn, not %R", other);
  }
  auto* own = reinterpret_cast<Turn*>(self);
  auto* following = reinterpret_cast<Turn*>(other);
  Py_BEGIN_ALLOW_THREADS;
  bind(*following);
  sem_post(&following->given);
  await(*own);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

}  // namespace

bool add_turn(PyObject* module) {
  static PyMethodDef methods[] = {
      {"give", give, METH_NOARGS, nullptr},
      {"wait", wait, METH_NOARGS, nullptr},
      {"swap", swap, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(make)},
      {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec{"kernelbench_dist._C.Turn", sizeof(Turn), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  const bool added = type != nullptr && PyModule_AddObjectRef(module, "Turn", type) == 0;
  Py_XDECREF(type);
  return added;
}

}  // namespace kernelbench_dist

#else

namespace kernelbench_dist {

bool add_turn(PyObject*) { return true; }

}  // namespace kernelbench_dist

#endif
