# The Python package's tests: those that need NumPy, PyTorch or vLLM's files (scripts/fetch-vllm) skip themselves without.
if(Python3_Interpreter_FOUND)
  add_test(NAME Python.Package COMMAND ${Python3_EXECUTABLE} -m unittest discover -v -s python/tests
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(Python.Package PROPERTIES LABELS unit ENVIRONMENT PYTHONPATH=${CMAKE_SOURCE_DIR}/python)
endif()
