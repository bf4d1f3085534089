# The server as its clients meet it, with the default model.
function(kvant_serve_tests)
  if(NOT Python3_Interpreter_FOUND)
    return()
  endif()
  add_test(NAME Serve.AnswersTheOpenaiPackage
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/openai_client_test.py $<TARGET_FILE:kvant>
                   ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
  add_test(NAME Serve.PageInABrowser
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/page_test.py $<TARGET_FILE:kvant>
                   ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
  set_tests_properties(Serve.PageInABrowser PROPERTIES LABELS model TIMEOUT 120)
  set_tests_properties(Serve.AnswersTheOpenaiPackage PROPERTIES LABELS model TIMEOUT 900)
endfunction()
