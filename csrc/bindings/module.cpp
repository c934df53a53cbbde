// The Python module kernelbench_dist._C: importing it loads the library, and loading the library
// registers the operators. Of its own it has what is no operator: Turn.
#include "bindings/turn.h"

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  static PyModuleDef definition{PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr && !kernelbench_dist::add_turn(module)) Py_CLEAR(module);
  return module;
}
