# The server as its clients meet it, with the default model.
function(kvant_serve_tests)
  if(NOT Python3_Interpreter_FOUND)
    return()
  endif()
  add_test(NAME Serve.AnswersTheOpenaiPackage
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/openai_client_test.py $<TARGET_FILE:kvant>
                   ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
  foreach(test PageInABrowser:page_test.py AnswersMessages:messages_client_test.py)
    string(REGEX MATCH "(.*):(.*)" _ ${test})
    add_test(NAME Serve.${CMAKE_MATCH_1}
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/${CMAKE_MATCH_2} $<TARGET_FILE:kvant>
                     ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
    set_tests_properties(Serve.${CMAKE_MATCH_1} PROPERTIES LABELS model TIMEOUT 300)
  endforeach()
  set_tests_properties(Serve.AnswersTheOpenaiPackage PROPERTIES LABELS model TIMEOUT 900)
endfunction()
