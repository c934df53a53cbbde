// kernelbench_dist._C.Turn, where the system has what it needs.
#pragma once

#include <Python.h>

namespace kernelbench_dist {

// Adds the type to the module. false: a Python exception is set.
bool add_turn(PyObject* module);

}  // namespace kernelbench_dist
