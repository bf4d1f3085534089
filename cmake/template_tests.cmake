# Compares chat templates with jinja2's output. The templates are those of llama.cpp's archive, which `make setup` puts
# next to its sources for chats.
function(kvant_template_tests)
  add_executable(write_prompts src/chat/testing/write_prompts.cc)
  target_link_libraries(write_prompts PRIVATE kvant_chat)
  target_compile_options(write_prompts PRIVATE $<$<CONFIG:Release>:-O1>)
  add_dependencies(unit_tests write_prompts)
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)  # `make setup` puts jinja2 there
    add_test(NAME Chat.TemplatesAreThoseOfJinja2
             COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python ${CMAKE_SOURCE_DIR}/src/chat/jinja2_comparison_test.py
                     $<TARGET_FILE:write_prompts> ${KVANT_LLAMA_CHAT}/templates)
    set_tests_properties(Chat.TemplatesAreThoseOfJinja2 PROPERTIES LABELS unit TIMEOUT 300 SKIP_RETURN_CODE 77)
  endif()
endfunction()
